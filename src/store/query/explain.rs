//! Explain: what there is to know about a job and its group, by plain reads. Locks nothing. The
//! functions of `sql/functions/explain.sql` read it and decide the reason.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::job::attempt::AttemptInfo;
use crate::job::explanation::{ProcessorInfo, SessionInfo};
use crate::job::facts::Facts;
use crate::job::job::JobStatus;
use crate::job::progress::Progress;
use crate::job::rate::Rate;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    STANDBY_AT = |names| names.sql("select {written_until}() where pg_catalog.pg_is_in_recovery()");
    EXPLAIN = |names| names.sql(
        "select e.*, case when pg_catalog.pg_is_in_recovery() then {written_until}() end as written_until
        from {explain}($1) e",
    );
    EXPLAIN_GROUP = |names| names.sql(
        "select e.*, case when pg_catalog.pg_is_in_recovery() then {written_until}() end as written_until
        from {explain_group}($1, $2) e",
    );
}

/// The job or the group that is asked about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    Job(i64),
    Group(&'a str, &'a str),
}

impl Store {
    /// Returns until when the server has what was written, if it is a standby.
    pub(crate) async fn standby_at(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        let row = self.query(&STANDBY_AT).fetch_optional(executor).await?;
        row.map(|row| row.try_get(0)).transpose()
    }

    /// Returns what there is to know; `None` if there is no such job.
    pub(crate) async fn facts(
        &self,
        conn: &mut PgConnection,
        subject: Subject<'_>,
    ) -> Result<Option<Facts>, sqlx::Error> {
        let query = match subject {
            Subject::Job(id) => self.query(&EXPLAIN).bind(id),
            Subject::Group(queue, group) => self.query(&EXPLAIN_GROUP).bind(queue).bind(group),
        };
        query.fetch_optional(conn).await?.as_ref().map(facts).transpose()
    }
}

fn facts(row: &PgRow) -> Result<Facts, sqlx::Error> {
    let count = |column: &str| {
        let count = row.try_get::<Option<i64>, _>(column);
        count.map(|count| count.unwrap_or_default().unsigned_abs())
    };
    let number = |column: &str| {
        let number = row.try_get::<Option<i32>, _>(column);
        number.map(|number| number.and_then(|n| u32::try_from(n).ok()))
    };
    let job = match row.try_get("job")? {
        None => None,
        Some(id) => {
            let status: &str = row.try_get("status")?;
            let unknown = || sqlx::Error::Decode(format!("unknown job status {status:?}").into());
            Some((id, JobStatus::parse(status).ok_or_else(unknown)?))
        }
    };
    let attempts = number("attempt")?.unwrap_or_default();
    let forgiven = number("attempts_forgiven")?.unwrap_or_default();
    let attempt = AttemptInfo::new(attempts, forgiven, number("attempt_limit")?);
    Ok(Facts {
        asked_at: row.try_get("asked_at")?,
        job,
        queue: row.try_get("queue")?,
        group: row.try_get("group_id")?,
        head: row.try_get("head")?,
        reason: row.try_get("reason")?,
        head_reason: row.try_get("head_reason")?,
        since: row.try_get("since")?,
        until: row.try_get("until")?,
        detail: row.try_get("detail")?,
        by: row.try_get("by_job")?,
        attempt,
        snoozes: number("snoozes")?.unwrap_or_default(),
        timeout_at: row.try_get("timeout_at")?,
        progress: Progress::new(
            row.try_get("progress_percent")?,
            row.try_get("progress_message")?,
            row.try_get("progress_at")?,
        ),
        batch: row.try_get("batch")?,
        replaced: number("replaced")?.unwrap_or_default(),
        replaced_at: row.try_get("replaced_at")?,
        behind: count("behind")?,
        before: count("before")?,
        in_flight: count("in_flight")?,
        limit: row.try_get::<Option<i64>, _>("in_flight_limit")?.map(i64::unsigned_abs),
        key_taken: count("key_taken")?,
        limit_per_key: number("limit_per_key")?,
        rate: Rate::stored(row.try_get("rate")?, row.try_get("rate_per_ms")?),
        cancel_requested_at: row.try_get("cancel_requested_at")?,
        unserved: row.try_get("unserved")?,
        parked: count("parked")?,
        parked_since: row.try_get("parked_since")?,
        has_parked: row.try_get::<Option<bool>, _>("has_parked")?.unwrap_or_default(),
        queue_paused: row.try_get::<Option<bool>, _>("queue_paused")?.unwrap_or_default(),
        processor: processor(row)?,
        session: session(row)?,
        standby_at: row.try_get("written_until")?,
    })
}

fn processor(row: &PgRow) -> Result<Option<ProcessorInfo>, sqlx::Error> {
    let Some(id) = row.try_get("processor")? else { return Ok(None) };
    Ok(Some(ProcessorInfo {
        id,
        node: row.try_get("node")?,
        host: row.try_get("host")?,
        pid: row.try_get("process_id")?,
        alive: row.try_get::<Option<bool>, _>("alive")?.unwrap_or_default(),
        silent: row.try_get::<Option<bool>, _>("silent")?.unwrap_or_default(),
        queues: row.try_get("serves")?,
        started_at: row.try_get("started_at")?,
        seen_at: row.try_get("seen_at")?,
    }))
}

fn session(row: &PgRow) -> Result<Option<SessionInfo>, sqlx::Error> {
    let Some(pid) = row.try_get("session")? else { return Ok(None) };
    Ok(Some(SessionInfo {
        pid,
        application: row.try_get("application")?,
        state: row.try_get("session_state")?,
        query: row.try_get("session_query")?,
        query_start: row.try_get("query_began")?,
        client_address: row.try_get("client_address")?,
        since: row.try_get("session_began")?,
        transaction_start: row.try_get("transaction_began")?,
        blocked_by: row.try_get("blocked_by")?,
    }))
}

#[cfg(test)]
mod tests {
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn a_query_is_shown_without_the_result_that_is_in_it() {
        let database = TestDatabase::create().await.unwrap();
        let shown = async |query: &str| -> Option<String> {
            let shown = sqlx::query_scalar("select seriatim.shown_query($1)").bind(query);
            shown.fetch_one(database.pool()).await.unwrap()
        };
        let literal = crate::store::literal::literal("SECRET");
        let query = format!("select settle_success(1, 'x', {literal}::jsonb, true, null); commit");
        assert_eq!(shown(&query).await.unwrap(), "select settle_success(1, 'x', (…");
        assert_eq!(shown("select 1").await.unwrap(), "select 1");
        assert_eq!(shown("").await, None);
        let hold = shown("begin; select \"seriatim\".\"hold_job\"(25, 'token')").await.unwrap();
        assert!(!hold.contains("token"), "{hold}");
        database.remove().await.unwrap();
    }
}

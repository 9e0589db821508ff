//! The jobs of a turn that its settle finds beside the last: those that succeeded before, and those
//! not begun.

use sqlx::{PgConnection, Row};

use crate::store::claim::claim::Claim;
use crate::store::names::Names;
use crate::store::settle::keep::KeepFinished;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Queues jobs again that were claimed as followers and not begun, as if they had not been
    /// claimed.
    REQUEUE_UNSTARTED = |names| names.sql(
        "update {job} set
            status = 'queued',
            attempts = attempts - 1,
            last_started_at = case when attempts > 1 then last_started_at end
        where id = any($1) and finished_at is null and status not in ('queued', 'parked')",
    );

    /// Records successes of a group that this transaction has locked by its token. Whatever was
    /// recorded already stays.
    KEEP = |names| recorded(
        names,
        "with done as materialized (
            select unnest($3) as id, unnest($4) as result
        ), ended as materialized (
            update {job} as j set
                status = 'succeeded',
                finished_at = clock_timestamp(),
                result = done.result::jsonb,
                error = null
            from done
            where j.id = any (array[done.id])
                and j.finished_at is null and j.status not in ('queued', 'parked')
            returning j.id
        )",
    );

    /// Deletes jobs that succeeded, if those are not kept.
    DELETE = |names| recorded(
        names,
        "with ended as materialized (
            delete from {job}
            where id = any($3) and finished_at is null and status not in ('queued', 'parked')
            returning id
        )",
    );

    /// Locks the group's row by its token if the claim's job has ended already.
    ALREADY_RECORDED = |names| names.sql(
        "select 1 from {queue_group} g
        where g.claim = $1 and not exists(
            select 1 from {job} j
            where j.id = $2 and j.finished_at is null and j.status not in ('queued', 'parked')
        )
        for no key update of g skip locked",
    );
}

/// Returns the statement that says whether the queue or the group is paused: the turn ends then.
fn recorded(names: &Names, record: &str) -> String {
    let text = format!(
        "{record}
        select exists(
            select 1 from {{queue}} q where q.name = $1 and q.paused_at is not null
        ) or exists(
            select 1 from {{group_setting}} s
            where s.queue = $1 and s.group_id = $2 and s.paused_at is not null
        ) as paused"
    );
    names.sql(&text)
}

/// A job of a turn whose handler has returned, and whose success is still to be recorded.
#[derive(Debug, Clone)]
pub(crate) struct UnrecordedSuccess {
    pub(crate) job: i64,
    /// As JSON.
    pub(crate) result: String,
}

impl Store {
    /// Queues the followers that were not begun. The group's row is locked by the claim's token.
    pub(crate) async fn requeue_unstarted(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<(), sqlx::Error> {
        if claim.behind.is_empty() {
            return Ok(());
        }
        self.query(&REQUEUE_UNSTARTED).bind(&claim.behind).execute(conn).await.map(drop)
    }

    /// Returns whether the claim's job was recorded already, and only the answer to the commit was
    /// lost. The group's row is locked then.
    pub(crate) async fn already_recorded(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let already_recorded = self.query(&ALREADY_RECORDED).bind(claim.token).bind(claim.job);
        Ok(already_recorded.fetch_optional(conn).await?.is_some())
    }

    /// Records successes of a group's turn, which stays claimed; returns whether the queue or the
    /// group is paused. The group's row is locked by the claim's token.
    pub(crate) async fn record_done(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
        done: &[UnrecordedSuccess],
        keep: KeepFinished,
    ) -> Result<bool, sqlx::Error> {
        let jobs: Vec<i64> = done.iter().map(|done| done.job).collect();
        let query = if keep.succeeded {
            let results: Vec<&str> = done.iter().map(|done| done.result.as_str()).collect();
            self.query(&KEEP).bind(queue).bind(group).bind(jobs).bind(results)
        } else {
            self.query(&DELETE).bind(queue).bind(group).bind(jobs)
        };
        query.fetch_one(conn).await?.try_get("paused")
    }
}

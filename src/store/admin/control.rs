//! Requests about one job or group: cancel, retry, skip, unhalt, run now. The functions of
//! `sql/functions/control.sql` carry them out. Each waits for no handler.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::job::job::JobStatus;
use crate::store::statement::{Statement, statements};
use crate::store::store::Store;

statements! {
    CANCEL = |names| names.sql("select status, done from {cancel}($1, $2, $3)");
    RETRY = |names| names.sql("select * from {retry}($1, $2, $3)");
    SKIP = |names| names.sql("select status, done, halted_by, busy, dead_letter_of from {skip}($1, $2, $3)");
    RUN_NOW = |names| names.sql("select status, done from {run_now}($1, $2, $3)");
    ABORT = |names| names.sql("select status, done, forbidden from {abort}($1, $2, $3)");
    SILENT = |names| names.sql("select p.id, p.seen_at from {processors}() p where p.silent");
    ABORT_SILENT = |names| names.sql("select {abort_silent_run}($1)");
    PARK = |names| names.sql("select job, running, busy from {park}($1, $2, $3, $4)");
    UNHALT_GROUP = |names| names.sql("select {unhalt}($1, $2, $3, $4)");
}

/// Who acts, and why. Without an actor nothing is written down.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Acting<'a> {
    pub(crate) actor: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
}

/// The result of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestReport {
    /// The job's status before the request; `None` if there is no such job.
    pub(crate) status: Option<JobStatus>,
    /// The request was carried out on the job's row.
    pub(crate) done: bool,
    /// A skip found the job's row locked by another transaction.
    pub(crate) busy: bool,
    /// Others were parked with the job, so it was left alone.
    pub(crate) parked: bool,
    /// The queue that the job failed in, if it waits in a dead-letter queue. So it was left alone,
    /// unless a retry has brought it back there.
    pub(crate) dead_letter_of: Option<String>,
    /// The queue that the job was moved to, and its number there. So it was left alone.
    pub(crate) moved: Option<(String, i64)>,
    /// A retry's later jobs that have run; otherwise 0.
    pub(crate) overtaken: u64,
    /// The job that has halted the group, if it is another one: so this one was left alone.
    pub(crate) halted_by: Option<i64>,
    /// The session that holds the job, if this role may not terminate it.
    pub(crate) forbidden: Option<i32>,
}

/// The result of a request to park a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParkReport {
    /// The failed job that others are parked with.
    pub(crate) job: Option<i64>,
    /// The job that runs: nothing was done.
    pub(crate) running: Option<i64>,
    /// Nothing was done: another transaction has a row, or the group is not adopted yet.
    pub(crate) busy: bool,
}

impl Store {
    /// Returns the silent processes, and when each was last seen.
    pub(crate) async fn silent_processors(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Vec<(i64, DateTime<Utc>)>, sqlx::Error> {
        let rows = self.query(&SILENT).fetch_all(conn).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Ends a run of these silent processes that is past its timeout; returns whether there was
    /// one.
    pub(crate) async fn abort_silent_run(
        &self,
        conn: &mut PgConnection,
        among: &[i64],
    ) -> Result<bool, sqlx::Error> {
        self.query(&ABORT_SILENT).bind(among).fetch_one(conn).await?.try_get(0)
    }

    pub(crate) async fn cancel(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
        acting: Acting<'_>,
    ) -> Result<RequestReport, sqlx::Error> {
        report(&self.request(&CANCEL, executor, job, acting).await?)
    }

    pub(crate) async fn retry(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
        acting: Acting<'_>,
    ) -> Result<RequestReport, sqlx::Error> {
        let row = self.request(&RETRY, executor, job, acting).await?;
        let overtaken = row.try_get::<Option<i64>, _>("overtaken")?.unwrap_or_default();
        let parked = row.try_get::<Option<bool>, _>("parked")?.unwrap_or_default();
        let dead_letter_of = row.try_get("dead_letter_of")?;
        let overtaken = overtaken.unsigned_abs();
        let moved = row.try_get::<Option<_>, _>("moved_to")?.zip(row.try_get("moved_as")?);
        Ok(RequestReport { parked, dead_letter_of, moved, overtaken, ..report(&row)? })
    }

    pub(crate) async fn skip(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
        acting: Acting<'_>,
    ) -> Result<RequestReport, sqlx::Error> {
        let row = self.request(&SKIP, executor, job, acting).await?;
        let busy = row.try_get::<Option<bool>, _>("busy")?.unwrap_or_default();
        let (halted_by, dead_letter_of) =
            (row.try_get("halted_by")?, row.try_get("dead_letter_of")?);
        Ok(RequestReport { busy, dead_letter_of, halted_by, ..report(&row)? })
    }

    pub(crate) async fn run_now(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
        acting: Acting<'_>,
    ) -> Result<RequestReport, sqlx::Error> {
        report(&self.request(&RUN_NOW, executor, job, acting).await?)
    }

    /// Takes the claim of a started job away, and terminates the session that holds it.
    pub(crate) async fn abort(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
        acting: Acting<'_>,
    ) -> Result<RequestReport, sqlx::Error> {
        let row = self.request(&ABORT, executor, job, acting).await?;
        Ok(RequestReport { forbidden: row.try_get("forbidden")?, ..report(&row)? })
    }

    /// Parks a group behind its next job.
    pub(crate) async fn park_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        acting: Acting<'_>,
    ) -> Result<ParkReport, sqlx::Error> {
        let park = self.query(&PARK).bind(queue).bind(group).bind(acting.reason);
        let row = park.bind(acting.actor).fetch_one(executor).await?;
        Ok(ParkReport { job: row.try_get(0)?, running: row.try_get(1)?, busy: row.try_get(2)? })
    }

    /// Ends the group's halt; returns whether it was halted.
    pub(crate) async fn unhalt_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        acting: Acting<'_>,
    ) -> Result<bool, sqlx::Error> {
        let unhalt = self.query(&UNHALT_GROUP).bind(queue).bind(group);
        let unhalt = unhalt.bind(acting.reason).bind(acting.actor);
        unhalt.fetch_one(executor).await?.try_get(0)
    }

    async fn request(
        &self,
        statement: &'static Statement,
        executor: impl PgExecutor<'_>,
        job: i64,
        acting: Acting<'_>,
    ) -> Result<PgRow, sqlx::Error> {
        let request = self.query(statement).bind(job).bind(acting.reason).bind(acting.actor);
        request.fetch_one(executor).await
    }
}

fn report(row: &PgRow) -> Result<RequestReport, sqlx::Error> {
    let status: Option<String> = row.try_get("status")?;
    Ok(RequestReport {
        status: status.as_deref().and_then(JobStatus::parse),
        done: row.try_get("done")?,
        ..RequestReport::default()
    })
}

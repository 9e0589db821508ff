//! Operations on many jobs at once: redrive, release a node. Each statement waits for no handler.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    REDRIVE = |names| names.sql(
        "select r.jobs, r.groups, r.overtaken, r.moved_back from {redrive}($1, $2, $3, $4, $5) r",
    );
    REDRIVE_JOBS = |names| names.sql(
        "select r.jobs, r.groups, r.overtaken, r.moved_back from {redrive_jobs}($1, $2, $3) r",
    );
    DISCARD_JOBS = |names| names.sql("select {discard_jobs}($1, $2, $3)");
    LAST_JOB = |names| names.sql("select coalesce(max(id), 0) from {job}");
    RELEASE = |names| names.sql("select r.groups, r.jobs from {release_node}($1, $2, $3) r");
}

/// The result of a redrive.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RedriveReport {
    pub(crate) jobs: u64,
    pub(crate) groups: u64,
    pub(crate) overtaken: u64,
    pub(crate) moved_back: u64,
    /// Nothing was done: another transaction has a row of the unit.
    pub(crate) busy: bool,
}

impl Store {
    /// Queues up to `limit` dead letters of a queue, or of one group of it.
    pub(crate) async fn redrive(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: Option<&str>,
        limit: i32,
        acting: Acting<'_>,
    ) -> Result<RedriveReport, sqlx::Error> {
        let redrive = self.query(&REDRIVE).bind(queue).bind(group).bind(limit);
        redrive_report(&redrive.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?)
    }

    /// Queues those of the jobs that are dead letters.
    pub(crate) async fn redrive_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        acting: Acting<'_>,
    ) -> Result<RedriveReport, sqlx::Error> {
        let redrive = self.query(&REDRIVE_JOBS).bind(jobs.to_vec());
        redrive_report(&redrive.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?)
    }

    /// Cancels those of the jobs that are dead letters; returns how many.
    pub(crate) async fn discard_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        acting: Acting<'_>,
    ) -> Result<u64, sqlx::Error> {
        let discard = self.query(&DISCARD_JOBS).bind(jobs.to_vec());
        let row = discard.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }

    /// Returns the highest id so far.
    pub(crate) async fn last_job(&self, conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
        self.query(&LAST_JOB).fetch_one(conn).await?.try_get(0)
    }

    /// Suspects the claims of a node; returns how many groups and jobs without a group.
    pub(crate) async fn release_node(
        &self,
        executor: impl PgExecutor<'_>,
        node: &str,
        acting: Acting<'_>,
    ) -> Result<(u64, u64), sqlx::Error> {
        let release = self.query(&RELEASE).bind(node).bind(acting.reason).bind(acting.actor);
        let row = release.fetch_one(executor).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok((count(0)?, count(1)?))
    }
}

fn redrive_report(row: &PgRow) -> Result<RedriveReport, sqlx::Error> {
    let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
    Ok(RedriveReport {
        jobs: count(0)?,
        groups: count(1)?,
        overtaken: count(2)?,
        moved_back: count(3)?,
        busy: false,
    })
}

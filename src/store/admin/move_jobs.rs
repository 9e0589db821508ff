//! Queued jobs, moved to the end of another queue. The functions of `sql/functions/move.sql` do it.

use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};

use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    MOVE_JOBS = |names| names.sql(
        "select m.jobs, m.new_jobs, m.groups, m.duplicates, m.left_behind
        from {move_jobs}($1, $2, $3, $4) m",
    );
    LANES_LEFT = |names| names.sql(
        "select distinct j.queue, j.group_id from {job} j
        where j.id = any($1) and j.queue <> $2 and j.status = 'queued' order by 1, 2",
    );
}

/// The result of a move.
#[derive(Debug, Clone, Default)]
pub(crate) struct MoveReport {
    /// The ids, old and new, in the order of both.
    pub(crate) jobs: Vec<(i64, i64)>,
    pub(crate) groups: u64,
    pub(crate) duplicates: u64,
    pub(crate) left_behind: u64,
}

impl Store {
    /// Returns the queues and groups, each once, that jobs leave by a move to queue `to`. A job
    /// without a group has its queue.
    pub(crate) async fn lanes_left(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        to: &str,
    ) -> Result<Vec<(String, Option<String>)>, sqlx::Error> {
        let rows = self.query(&LANES_LEFT).bind(jobs).bind(to).fetch_all(executor).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    pub(crate) async fn move_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        to_queue: &str,
        acting: Acting<'_>,
    ) -> Result<MoveReport, sqlx::Error> {
        let statement = self.query(&MOVE_JOBS).bind(jobs.to_vec()).bind(to_queue);
        report(&statement.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?)
    }
}

fn report(row: &PgRow) -> Result<MoveReport, sqlx::Error> {
    let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
    let (old, new): (Vec<i64>, Vec<i64>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(MoveReport {
        jobs: old.into_iter().zip(new).collect(),
        groups: count(2)?,
        duplicates: count(3)?,
        left_behind: count(4)?,
    })
}

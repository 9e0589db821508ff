//! Tasks that move what waits in a queue. The functions of `sql/functions/move_task.sql` do it.

use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};

use crate::job::explanation::BoundedCount;
use crate::job::move_task::{MoveTask, MoveTaskStatus, NewMoveTask};
use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    START = |names| names.sql("select {start_move_task}($1, $2, $3, $4, $5, $6, $7)");
    CANCEL = |names| names.sql("select {cancel_move_task}($1, $2, $3)");
    RUN = |names| names.sql("select {run_move_tasks}()");
    LIST = |names| names.sql(&[COLUMNS, "where $1::text is null or t.from_queue = $1 order by t.id desc limit $2"].concat());
    ONE = |names| names.sql(&[COLUMNS, "where t.id = $1"].concat());
}

const COLUMNS: &str =
    "select t.id, t.from_queue, t.to_queue, t.per_second::integer, t.status, t.moved, t.to_move,
    t.started_at, t.ended_at, t.failure, t.group_id, t.job_limit::integer from {move_task} t ";

impl Store {
    /// Starts a task; returns its number. Error 22023: one is running for the queue.
    pub(crate) async fn start_move_task(
        &self,
        executor: impl PgExecutor<'_>,
        task: &NewMoveTask,
        acting: Acting<'_>,
    ) -> Result<i64, sqlx::Error> {
        let NewMoveTask { from_queue, to_queue, group, limit, per_second } = task;
        // Their ranges are checked before.
        let most = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
        let start = self.query(&START).bind(from_queue).bind(to_queue).bind(per_second.map(most));
        let start = start.bind(acting.reason).bind(acting.actor);
        let start = start.bind(group).bind(limit.map(most));
        start.fetch_one(executor).await?.try_get(0)
    }

    /// Ends a task; returns how many jobs it has moved, or `None` if it does not run.
    pub(crate) async fn cancel_move_task(
        &self,
        executor: impl PgExecutor<'_>,
        task: i64,
        acting: Acting<'_>,
    ) -> Result<Option<u64>, sqlx::Error> {
        let cancel = self.query(&CANCEL).bind(task).bind(acting.reason).bind(acting.actor);
        let moved: Option<i64> = cancel.fetch_one(executor).await?.try_get(0)?;
        Ok(moved.map(i64::unsigned_abs))
    }

    /// Carries all running tasks one batch further; returns how many jobs moved.
    pub(crate) async fn run_move_tasks(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<u64, sqlx::Error> {
        let row = self.query(&RUN).fetch_one(executor).await?;
        row.try_get::<i64, _>(0).map(i64::unsigned_abs)
    }

    pub(crate) async fn move_task(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
    ) -> Result<Option<MoveTask>, sqlx::Error> {
        let row = self.query(&ONE).bind(id).fetch_optional(executor).await?;
        row.as_ref().map(task).transpose()
    }

    /// Returns the tasks of a queue, or of all, the newest first.
    pub(crate) async fn move_tasks(
        &self,
        executor: impl PgExecutor<'_>,
        queue: Option<&str>,
        limit: i64,
    ) -> Result<Vec<MoveTask>, sqlx::Error> {
        let list = self.query(&LIST).bind(queue).bind(limit);
        list.fetch_all(executor).await?.iter().map(task).collect()
    }
}

fn task(row: &PgRow) -> Result<MoveTask, sqlx::Error> {
    let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
    let status: &str = row.try_get(4)?;
    Ok(MoveTask {
        id: row.try_get(0)?,
        from_queue: row.try_get(1)?,
        to_queue: row.try_get(2)?,
        per_second: row.try_get::<Option<i32>, _>(3)?.map(i32::unsigned_abs),
        status: MoveTaskStatus::parse(status).ok_or_else(|| {
            sqlx::Error::Decode(format!("unknown status {status:?} of a move task").into())
        })?,
        moved: count(5)?,
        to_move: BoundedCount::new(count(6)?),
        started_at: row.try_get(7)?,
        ended_at: row.try_get(8)?,
        failure: row.try_get(9)?,
        group: row.try_get(10)?,
        limit: row.try_get::<Option<i32>, _>(11)?.map(i32::unsigned_abs),
    })
}

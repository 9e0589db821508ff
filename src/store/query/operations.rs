//! The changes that operators made, and the processors.

use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};

use crate::job::explanation::ProcessorInfo;
use crate::job::operation::Operation;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    OPERATIONS = |names| names.sql(
        "select id, at, actor, action, queue, group_id, job_id, reason, affected, schedule,
          sqs_key, db_user
        from {operation} where $1::int8 is null or id < $1 order by id desc limit $2",
    );
    // The table has no index by job: the last 10,000 operations are looked through.
    OF_JOB = |names| names.sql(
        "select o.* from (
            select id, at, actor, action, queue, group_id, job_id, reason, affected, schedule,
              sqs_key, db_user
            from {operation} order by id desc limit 10000) o
        where o.job_id = $1 order by o.id limit 100",
    );
    PROCESSORS = |names| names.sql(
        "select id, node, host, pid, alive, queues, started_at, seen_at, silent from {processors}()",
    );
}

impl Store {
    /// Returns what operators did, the last first, before an id if one is given.
    pub(crate) async fn operations(
        &self,
        executor: impl PgExecutor<'_>,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<Operation>, sqlx::Error> {
        let rows = self.query(&OPERATIONS).bind(before).bind(limit).fetch_all(executor).await?;
        rows.iter().map(operation).collect()
    }

    /// Returns what operators did with a job, the first first: of the last 10,000 operations, and
    /// 100 at most.
    pub(crate) async fn job_operations(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Vec<Operation>, sqlx::Error> {
        let rows = self.query(&OF_JOB).bind(job).fetch_all(executor).await?;
        rows.iter().map(operation).collect()
    }

    pub(crate) async fn processors(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Vec<ProcessorInfo>, sqlx::Error> {
        let rows = self.query(&PROCESSORS).fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                Ok(ProcessorInfo {
                    id: row.try_get(0)?,
                    node: row.try_get(1)?,
                    host: row.try_get(2)?,
                    pid: row.try_get(3)?,
                    alive: row.try_get(4)?,
                    queues: row.try_get(5)?,
                    started_at: row.try_get(6)?,
                    seen_at: row.try_get(7)?,
                    silent: row.try_get(8)?,
                })
            })
            .collect()
    }
}

fn operation(row: &PgRow) -> Result<Operation, sqlx::Error> {
    Ok(Operation {
        id: row.try_get(0)?,
        at: row.try_get(1)?,
        actor: row.try_get(2)?,
        action: row.try_get(3)?,
        queue: row.try_get(4)?,
        group: row.try_get(5)?,
        job: row.try_get(6)?,
        reason: row.try_get(7)?,
        affected: row.try_get::<i64, _>(8)?.unsigned_abs(),
        schedule: row.try_get(9)?,
        sqs_key: row.try_get(10)?,
        db_user: row.try_get(11)?,
    })
}

//! Tasks that move messages from a dead-letter queue.

use chrono::{DateTime, Utc};
use sqlx::{PgPool, Row};

use crate::database::database::Database;
use crate::error::SqsError;

/// A task that moves messages, as it stands.
#[derive(Debug, Clone)]
pub(crate) struct MoveTask {
    pub(crate) id: i64,
    /// `None`: the queue that each message came from.
    pub(crate) to_queue: Option<String>,
    pub(crate) per_second: Option<i32>,
    pub(crate) status: String,
    pub(crate) moved: i64,
    pub(crate) to_move: i64,
    pub(crate) failure: Option<String>,
    pub(crate) started_at: DateTime<Utc>,
}

impl Database {
    /// Starts a task that moves what waits in a queue, for an operator. Returns its number; `None`
    /// if one is running.
    pub(crate) async fn start_move_task(
        &self,
        pool: &PgPool,
        source: &str,
        target: Option<&str>,
        rate: Option<i64>,
        actor: &str,
    ) -> Result<Option<i64>, SqsError> {
        let sql = self
            .sql("select {schema}.start_move_task($1, $2, $3::int, 'StartMessageMoveTask', $4)");
        let task = sqlx::query_scalar(sql).bind(source).bind(target).bind(rate).bind(actor);
        match task.fetch_one(pool).await {
            // The arguments are sound.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("22023") => {
                Ok(None)
            }
            task => Ok(Some(task?)),
        }
    }

    /// Ends a task of a source queue, for an operator. Returns how many messages it has moved;
    /// `None` if no such task is running, to a queue that a pattern of `shown` is like.
    pub(crate) async fn cancel_move_task(
        &self,
        pool: &PgPool,
        task: i64,
        source: &str,
        actor: &str,
        shown: Option<Vec<String>>,
    ) -> Result<Option<i64>, SqsError> {
        let sql = self.sql(
            "select {schema}.cancel_move_task(t.id, 'CancelMessageMoveTask', $3)
             from {schema}.move_task t
             where t.id = $1 and t.from_queue = $2
               and ($4::text[] is null or t.to_queue like any ($4))",
        );
        let moved = sqlx::query_scalar(sql).bind(task).bind(source).bind(actor).bind(shown);
        Ok(moved.fetch_optional(pool).await?.flatten())
    }

    /// Returns the tasks of a source queue, the newest first: those to a queue that a pattern of
    /// `shown` is like, or all.
    pub(crate) async fn move_tasks(
        &self,
        pool: &PgPool,
        source: &str,
        most: i64,
        shown: Option<Vec<String>>,
    ) -> Result<Vec<MoveTask>, SqsError> {
        let sql = self.sql(
            "select t.id, t.to_queue, t.per_second::int, t.status, t.moved, t.to_move, t.failure,
               t.started_at
             from {schema}.move_task t
             where t.from_queue = $1 and ($3::text[] is null or t.to_queue like any ($3))
             order by t.id desc limit $2",
        );
        let rows = sqlx::query(sql).bind(source).bind(most).bind(shown).fetch_all(pool).await?;
        let tasks = rows.iter().map(|row| {
            Ok(MoveTask {
                id: row.try_get(0)?,
                to_queue: row.try_get(1)?,
                per_second: row.try_get(2)?,
                status: row.try_get(3)?,
                moved: row.try_get(4)?,
                to_move: row.try_get(5)?,
                failure: row.try_get(6)?,
                started_at: row.try_get(7)?,
            })
        });
        Ok(tasks.collect::<Result<_, sqlx::Error>>()?)
    }
}

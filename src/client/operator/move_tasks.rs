//! Move tasks: what waits in a queue, moved so many jobs a second; dead letters, moved back.

use sqlx::PgExecutor;
use sqlx::error::DatabaseError;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::move_task::NewMoveTask;
use crate::job::name;

impl Operator {
    /// Starts a task that moves what waits in a queue. Jobs keep their ids, and so their order in a
    /// group. Their attempts begin anew. Jobs in flight stay.
    ///
    /// Processors with maintenance and `seriatim serve sqs` carry the task on, and
    /// [`Client::run_move_tasks`](crate::Client::run_move_tasks) does. It ends when nothing is left
    /// to move, or at its limit.
    ///
    /// Returns the number of the task. The last ten ended tasks of each queue are kept.
    ///
    /// # Errors
    /// [`ControlError::MoveTaskRuns`]; [`ControlError::Name`]; [`ControlError::OutOfRange`]: the
    /// two queues are one, or a limit or rate is out of its range; [`ControlError::Database`].
    pub async fn start_move_task(
        &self,
        executor: impl PgExecutor<'_>,
        task: &NewMoveTask,
    ) -> Result<i64, ControlError> {
        let NewMoveTask { from_queue, to_queue, group, limit, per_second } = task;
        name::check_queue(from_queue)?;
        if let Some(group) = group {
            name::check("group", group, name::GROUP_LIMIT)?;
        }
        if let Some(to_queue) = to_queue {
            name::check_queue(to_queue)?;
            if to_queue == from_queue {
                return Err(ControlError::OutOfRange {
                    setting: "to_queue",
                    value: format!("{to_queue:?}"),
                    range: "another queue than that which jobs are moved from",
                });
            }
        }
        check_count("limit", *limit)?;
        check_count("per_second", *per_second)?;
        let started = self.store().start_move_task(executor, task, self.acting()?).await;
        started.map_err(|error| match error.as_database_error().and_then(DatabaseError::code) {
            // The arguments were checked.
            Some(code) if code == "22023" => {
                ControlError::MoveTaskRuns { queue: from_queue.clone() }
            }
            _ => error.into(),
        })
    }

    /// Ends a move task. Returns the number of jobs that it has moved, which stay moved; `None` if
    /// no such task is running. Waits for a transaction that carries it on.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn cancel_move_task(
        &self,
        executor: impl PgExecutor<'_>,
        task: i64,
    ) -> Result<Option<u64>, ControlError> {
        Ok(self.store().cancel_move_task(executor, task, self.acting()?).await?)
    }
}

fn check_count(setting: &'static str, count: Option<u32>) -> Result<(), ControlError> {
    match count {
        Some(count) if count == 0 || i32::try_from(count).is_err() => {
            Err(ControlError::OutOfRange {
                setting,
                value: count.to_string(),
                range: "a number from 1 to 2147483647",
            })
        }
        _ => Ok(()),
    }
}

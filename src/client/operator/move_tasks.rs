//! Move tasks: what waits in a queue, moved so many jobs a second; dead letters, moved back.

use sqlx::PgExecutor;
use sqlx::error::DatabaseError;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;

impl Operator {
    /// Starts a task that moves what waits in `from_queue` to `to_queue`; without that each job
    /// back to the queue that it came from as a dead letter, and no other. Jobs keep their ids, and
    /// so their order in a group. Their attempts begin anew. Jobs in flight stay.
    ///
    /// `per_second` is the most jobs a second over the whole fleet, `None`: as fast as it goes.
    /// Processors with maintenance and `seriatim serve sqs` carry the task on, and
    /// [`Client::run_move_tasks`](crate::Client::run_move_tasks) does. It ends when nothing is left
    /// to move.
    ///
    /// Returns the number of the task. The last ten ended tasks of each queue are kept.
    ///
    /// # Errors
    /// [`ControlError::MoveTaskRuns`]; [`ControlError::Name`]; [`ControlError::OutOfRange`]: the
    /// two queues are one, or 0 a second; [`ControlError::Database`].
    pub async fn start_move_task(
        &self,
        executor: impl PgExecutor<'_>,
        from_queue: &str,
        to_queue: Option<&str>,
        per_second: Option<u32>,
    ) -> Result<i64, ControlError> {
        name::check_queue(from_queue)?;
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
        let rate = per_second.map(i32::try_from).transpose().ok().filter(|rate| *rate != Some(0));
        let rate = rate.ok_or_else(|| ControlError::OutOfRange {
            setting: "per_second",
            value: per_second.map(|rate| rate.to_string()).unwrap_or_default(),
            range: "a number from 1 to 2147483647",
        })?;
        let acting = self.acting();
        let started =
            self.store().start_move_task(executor, from_queue, to_queue, rate, acting).await;
        started.map_err(|error| match error.as_database_error().and_then(DatabaseError::code) {
            // The arguments were checked.
            Some(code) if code == "22023" => {
                ControlError::MoveTaskRuns { queue: from_queue.to_owned() }
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
        Ok(self.store().cancel_move_task(executor, task, self.acting()).await?)
    }
}

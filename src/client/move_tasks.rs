//! Move tasks: listed, and carried on without a processor.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::move_task::MoveTask;

/// Bounds a list of tasks.
const LISTED: i64 = 1000;

impl Client {
    /// Returns the move tasks of a queue, or of all: those that run, and the last that have ended.
    /// The newest is the first, and 1,000 are listed at most.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn move_tasks(
        &self,
        executor: impl PgExecutor<'_>,
        from_queue: Option<&str>,
    ) -> Result<Vec<MoveTask>, ControlError> {
        Ok(self.store.move_tasks(executor, from_queue, LISTED).await?)
    }

    /// Carries all running move tasks one batch further, as maintenance does: at most 1,000 jobs of
    /// each, and no more than its rate allows. Returns how many jobs were moved. Any number of
    /// processes may call it at once.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn run_move_tasks(&self, executor: impl PgExecutor<'_>) -> Result<u64, ControlError> {
        Ok(self.store.run_move_tasks(executor).await?)
    }
}

//! Batches that are given up.

use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;

impl Operator {
    /// Abandons a batch that has not ended: its follow-up is never enqueued, and no job joins any
    /// more. Its jobs stay, and run. Returns false if it has ended, or was abandoned before.
    ///
    /// # Errors
    /// [`ControlError::NoSuchBatch`]; [`ControlError::Database`].
    pub async fn abandon_batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
    ) -> Result<bool, ControlError> {
        let abandoned = self.store().abandon_batch(executor, batch, self.acting()?).await?;
        abandoned.ok_or(ControlError::NoSuchBatch { batch })
    }
}

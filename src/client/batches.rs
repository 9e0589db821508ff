//! Batches: opened, sealed, read, and ended without a processor.

use sqlx::{PgExecutor, PgPool};

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::batch::{Batch, BatchJob, NewBatch};
use crate::job::error::BatchError;
use crate::job::redact::redact_detail;
use crate::maintenance::batches::end_batches;
use crate::store::WorkConnection;

/// Bounds a list of batches, and one of the jobs of a batch.
const LISTED: i32 = 100;
const JOBS: i32 = 1000;

impl Client {
    /// Opens a batch: on a pool, on a connection, or in the caller's transaction (`&mut *tx`).
    /// There it exists if and only if the transaction commits. Returns its id, for
    /// [`NewJob::batch`](crate::NewJob::batch). The layers of this client complete its follow-up.
    ///
    /// It ends only once it is sealed ([`seal_batch`](Self::seal_batch)).
    ///
    /// # Errors
    /// [`BatchError`]; nothing was written then.
    pub async fn open_batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: NewBatch,
    ) -> Result<i64, BatchError> {
        let batch = batch.check(&self.enqueue)?;
        Ok(self.store.open_batch(executor, &batch).await?)
    }

    /// Seals a batch: no job joins any more, and it ends when its jobs have. One without jobs ends
    /// at once. Returns false if it was sealed already.
    ///
    /// It does not wait for transactions that have enqueued jobs of the batch and are still open:
    /// the batch ends behind their commits. It wakes maintenance by `NOTIFY`, so a transaction that
    /// is to be prepared (`PREPARE TRANSACTION`) cannot have it.
    ///
    /// # Errors
    /// [`BatchError::NoSuchBatch`]; [`BatchError::Database`].
    pub async fn seal_batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
    ) -> Result<bool, BatchError> {
        let sealed = self.store.seal_batch(executor, batch).await?;
        sealed.ok_or(BatchError::NoSuchBatch { batch })
    }

    /// Returns a batch, and how many of its jobs have ended; `None` if there is none. A batch is
    /// kept as long as the job that is its follow-up, and one day after it was abandoned.
    ///
    /// # Errors
    /// [`BatchError::Database`].
    pub async fn batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
    ) -> Result<Option<Batch>, BatchError> {
        Ok(self.store.batches(executor, Some(batch), None, 1, false).await?.pop())
    }

    /// Returns batches, the newest first, or those before the batch `before`: 100 at most. With
    /// `pending` those that have ended or were abandoned are left out. Counts stop at 1,000 here.
    ///
    /// # Errors
    /// [`BatchError::Database`].
    pub async fn batches(
        &self,
        executor: impl PgExecutor<'_>,
        before: Option<i64>,
        pending: bool,
    ) -> Result<Vec<Batch>, BatchError> {
        Ok(self.store.batches(executor, None, before, LISTED, pending).await?)
    }

    /// Returns how jobs of a batch have ended, with their results, in the order of their ids: from
    /// the first on, or behind the job `after`. 1,000 are listed at most. The follow-up calls it
    /// with [`ActiveJob::ended_batch`](crate::ActiveJob::ended_batch).
    ///
    /// Results are kept with the batch, whatever the retention of their jobs. A client
    /// [without data](Self::without_data) gets none.
    ///
    /// # Errors
    /// [`BatchError::Database`].
    pub async fn batch_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
        after: Option<i64>,
    ) -> Result<Vec<BatchJob>, BatchError> {
        Ok(self.store.batch_jobs(executor, batch, after, JOBS, self.without_data).await?)
    }

    /// Ends the batches whose jobs have ended, as processors with maintenance do: for a database
    /// without one. Returns how many follow-ups were enqueued. Any number of processes may call it
    /// at once.
    ///
    /// # Errors
    /// [`ControlError::BatchRefused`] if the database refused to enqueue a follow-up; the other
    /// batches were ended all the same. [`ControlError::Database`].
    ///
    /// # Cancel safety
    /// Cancel safe: what was done stays, the rest is for the next call.
    pub async fn end_batches(&self, pool: &PgPool) -> Result<u64, ControlError> {
        let mut conn = WorkConnection::from(pool.acquire().await?);
        let ended = end_batches(&self.store, &mut conn).await.map_err(redact_detail)?;
        conn.done();
        match ended.refused.into_iter().next() {
            Some((batch, reason)) => Err(ControlError::BatchRefused { batch, reason }),
            None => Ok(ended.follow_ups),
        }
    }
}

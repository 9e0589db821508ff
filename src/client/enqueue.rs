//! Enqueue: writes new jobs, and touches nothing else.

use sqlx::PgExecutor;
use tracing::Instrument;

use crate::client::client::Client;
use crate::job::error::EnqueueError;
use crate::job::job::Enqueued;
use crate::job::new_job::{CheckedJob, NewJob};
use crate::store::{begin_send, check, check_call, end_send, refused};

impl Client {
    /// Enqueues one job: on a pool, on a connection, or in the caller's transaction (`&mut *tx`).
    /// There it exists if and only if the transaction commits.
    ///
    /// It is one `INSERT` that waits for nothing: no handler, no worker, no other producer, at any
    /// isolation level. Two exceptions: it waits for another open transaction with the same
    /// deduplication id ([`NewJob::dedup_id`]) or unique key ([`NewJob::unique`]), and a unique key
    /// needs READ COMMITTED.
    ///
    /// # Errors
    /// [`EnqueueError`]; nothing was written then. An error from the database aborts the caller's
    /// transaction, as any failed statement does; the others are found before any SQL.
    pub async fn enqueue(
        &self,
        executor: impl PgExecutor<'_>,
        job: impl Into<NewJob>,
    ) -> Result<Enqueued, EnqueueError> {
        self.store.enqueue(executor, job.into(), &self.enqueue).await
    }

    /// Enqueues any number of jobs in one statement, all or none. Together they have at most 256
    /// MiB. Returns the results in the order of the jobs.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); the error names the job by its position. Also
    /// [`EnqueueError::CallTooLarge`].
    pub async fn enqueue_many(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: impl IntoIterator<Item: Into<NewJob>>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let mut jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
        let span = begin_send(&mut jobs, &self.enqueue, true);
        let inserted = async {
            let checked = jobs
                .into_iter()
                .enumerate()
                .map(|(index, job)| check(job, Some(index), &self.enqueue))
                .collect::<Result<Vec<_>, _>>()?;
            self.insert(executor, checked).await
        };
        let enqueued = inserted.instrument(span.clone()).await;
        end_send(&span, &enqueued);
        enqueued
    }

    /// Enqueues the jobs that pass their checks, in one statement. Together they have at
    /// most 256 MiB. Returns the results in the order of the jobs: a job that fails its checks gets
    /// its error and does not hold up the others.
    ///
    /// # Errors
    /// [`EnqueueError::Database`] or [`EnqueueError::CallTooLarge`]; nothing was written then.
    pub async fn enqueue_batch(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: impl IntoIterator<Item: Into<NewJob>>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError> {
        let mut jobs: Vec<NewJob> = jobs.into_iter().map(Into::into).collect();
        let span = begin_send(&mut jobs, &self.enqueue, true);
        let mut checked = Vec::new();
        let refusals: Vec<Option<EnqueueError>> = jobs
            .into_iter()
            .enumerate()
            .map(|(index, job)| {
                check(job, Some(index), &self.enqueue).map(|job| checked.push(job)).err()
            })
            .collect();
        let enqueued = self.insert(executor, checked).instrument(span.clone()).await;
        end_send(&span, &enqueued);
        let enqueued = enqueued?;
        let mut enqueued = enqueued.into_iter();
        refusals
            .into_iter()
            .map(|refusal| match refusal {
                Some(refusal) => Ok(Err(refusal)),
                None => {
                    enqueued.next().map(Ok).ok_or(EnqueueError::Database(sqlx::Error::RowNotFound))
                }
            })
            .collect()
    }

    /// Inserts jobs in one statement; no statement for none.
    async fn insert(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: Vec<CheckedJob>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        check_call(&jobs)?;
        let inserted = self.store.insert_jobs(executor, jobs, self.enqueue.notify).await;
        inserted.map_err(refused)
    }
}

/// Calls [`Client::enqueue`] for the schema `seriatim`.
pub async fn enqueue(
    executor: impl PgExecutor<'_>,
    job: impl Into<NewJob>,
) -> Result<Enqueued, EnqueueError> {
    Client::default().enqueue(executor, job).await
}

/// Calls [`Client::enqueue_many`] for the schema `seriatim`.
pub async fn enqueue_many(
    executor: impl PgExecutor<'_>,
    jobs: impl IntoIterator<Item: Into<NewJob>>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    Client::default().enqueue_many(executor, jobs).await
}

//! Cancel: by the application, or by an operator.

use std::fmt;

use serde::Serialize;
use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::job::JobStatus;
use crate::store::{Acting, Store};

/// The result of [`Client::cancel`]; prints as the rest of a sentence about the job: `job 1 is …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancelled {
    /// The job will not run.
    Now,
    /// The job is running, or about to run, or another transaction has its row. A request is left:
    /// the handler's [`cancelled`](crate::ActiveJob::cancelled) resolves. If the attempt does not
    /// succeed, the job ends as `cancelled` instead of being retried.
    Requested,
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Now => "cancelled: it will not run",
            Self::Requested => "asked to stop: it runs, or another transaction has its row",
        })
    }
}

impl Client {
    /// Cancels a job that has not ended. In a transaction it takes effect when that commits; until
    /// then the job's group waits. Above READ COMMITTED a job that waits gets a request as well:
    /// the snapshot may hide that it runs.
    ///
    /// No operation is recorded. An [operator](crate::admin::Operator::cancel) records who
    /// cancelled.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it has ended;
    /// [`ControlError::Busy`] if it is parked and another transaction has its row;
    /// [`ControlError::Database`].
    pub async fn cancel(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Cancelled, ControlError> {
        cancel(&self.store, executor, job, Acting::default()).await
    }
}

/// Cancels a job; `acting` is who asks for it.
pub(crate) async fn cancel(
    store: &Store,
    executor: impl PgExecutor<'_>,
    job: i64,
    acting: Acting<'_>,
) -> Result<Cancelled, ControlError> {
    let report = store.cancel(executor, job, acting).await?;
    match report.status {
        Some(_) if report.done => Ok(Cancelled::Now),
        Some(JobStatus::Queued | JobStatus::Started) => Ok(Cancelled::Requested),
        Some(JobStatus::Parked) => Err(ControlError::Busy { id: job }),
        status => Err(refusal(job, status, "cancelled", "it has ended")),
    }
}

/// Returns why a request about a job was refused: there is none, or its status does not allow it.
pub(crate) fn refusal(
    id: i64,
    status: Option<JobStatus>,
    request: &'static str,
    advice: &'static str,
) -> ControlError {
    match status {
        None => ControlError::NoSuchJob { id },
        Some(status) => ControlError::WrongStatus { id, status, request, advice },
    }
}

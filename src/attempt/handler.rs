//! The trait that users implement.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::active_job::ActiveJob;
use crate::attempt::kinds::Kinds;
use crate::job::bytes::JobData;
use crate::job::job::FailureKind;
use crate::job::job_error::{JobError, storable};
use crate::job::json::has_nul;
use crate::job::outcome::RunResult;

/// Runs the jobs of a queue.
///
/// While `handle` runs, no other job of the same group is in a handler anywhere. Writes through
/// [`ActiveJob::tx`] commit together with the job's success, or not at all.
///
/// The future is dropped when the attempt times out, when its hold is lost, and at the end of a
/// shutdown. Outside of the transaction, leave no work half-done across an await.
///
/// ```
/// use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
///
/// #[derive(serde::Deserialize)]
/// struct Posting { account: i32, cents: i64 }
///
/// struct Post;
///
/// #[async_trait]
/// impl JobHandler for Post {
///     type Data = Posting;
///     type Output = i64;
///     type Error = JobError;
///
///     async fn handle(&self, job: &mut ActiveJob, posting: Posting) -> Result<i64, JobError> {
///         let update = "UPDATE account SET cents = cents + $2 WHERE id = $1 RETURNING cents";
///         let balance = sqlx::query_scalar(update)
///             .bind(posting.account)
///             .bind(posting.cents)
///             .fetch_optional(job.tx().await?)
///             .await?;
///         balance.ok_or_else(|| JobError::fail(format!("no account {}", posting.account)))
///     }
/// }
/// ```
#[async_trait]
pub trait JobHandler: Send + Sync + 'static {
    /// The job's data, decoded from its JSON; [`Bytes`](crate::Bytes) for jobs with raw bytes. Data
    /// that does not decode fails the attempt, which is retried in its place unless
    /// [`retry_undecodable`](crate::QueueOptions::retry_undecodable) is false. The message has the
    /// type, the field and the process, and not the data.
    type Data: DeserializeOwned + Send;
    /// Stored as the job's `result`.
    type Output: Serialize + Send;
    /// [`JobError`], or an error type of your own (each of its values then means retry).
    type Error: Into<JobError> + Send;

    /// Runs one attempt.
    async fn handle(
        &self,
        job: &mut ActiveJob,
        data: Self::Data,
    ) -> Result<Self::Output, Self::Error>;

    /// Returns the handlers by kind, which [`build`](crate::ProcessorBuilder::build) checks, and
    /// whose policies hold for their jobs. For [`Kinds`], and handlers that pass jobs on to one.
    /// Default `None`.
    fn kinds(&self) -> Option<&Kinds> {
        None
    }
}

#[async_trait]
impl<H: JobHandler> JobHandler for Arc<H> {
    type Data = H::Data;
    type Output = H::Output;
    type Error = H::Error;

    async fn handle(&self, job: &mut ActiveJob, data: H::Data) -> Result<H::Output, H::Error> {
        self.as_ref().handle(job, data).await
    }

    fn kinds(&self) -> Option<&Kinds> {
        self.as_ref().kinds()
    }
}

/// Returns the failure of an attempt whose data does not decode.
pub(crate) fn undecodable(job: &ActiveJob, error: &str) -> JobError {
    let message = format!("{error} ({})", job.context.process());
    JobError::broken(FailureKind::Data, message)
}

/// A handler without its types: JSON or raw bytes in, JSON out.
#[async_trait]
pub(crate) trait ErasedHandler: Send + Sync + 'static {
    async fn run(&self, job: &mut ActiveJob, data: &JobData) -> Result<RunResult, JobError>;

    fn kinds(&self) -> Option<&Kinds>;
}

#[async_trait]
impl<H: JobHandler> ErasedHandler for H {
    async fn run(&self, job: &mut ActiveJob, data: &JobData) -> Result<RunResult, JobError> {
        let data = match data.decode() {
            Ok(data) => data,
            Err(error) => return Err(undecodable(job, &error)),
        };
        let output = match self.handle(job, data).await {
            Ok(output) => output,
            Err(error) => return Err(error.into()),
        };
        if let Some(delay) = job.again.take() {
            return Ok(RunResult::Again(delay));
        }
        Ok(match serde_json::to_string(&output) {
            Ok(json) if has_nul(&json) => {
                let message = "the output has a NUL character in a string, which jsonb cannot hold";
                RunResult::Broken(FailureKind::Output, message.to_owned())
            }
            Ok(json) if json.len() > job.output_limit() => {
                let (size, limit) = (json.len(), job.output_limit());
                let message = format!(
                    "the output has {size} bytes, at most {limit} are allowed: store it elsewhere, or \
                     raise the limit with Client::data_limit"
                );
                RunResult::Broken(FailureKind::Output, message)
            }
            Ok(json) => RunResult::Succeeded(json),
            Err(error) => RunResult::Broken(FailureKind::Output, storable(&error)),
        })
    }

    fn kinds(&self) -> Option<&Kinds> {
        JobHandler::kinds(self)
    }
}

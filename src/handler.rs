//! What users implement.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::ActiveJob;
use crate::job::{Failure, FailureKind, has_nul};
use crate::outcome::RunResult;

type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// Runs the jobs of a queue.
///
/// While `handle` runs, no other job of the same group is in a handler anywhere. What it writes through
/// [`ActiveJob::tx`] commits together with the job's success, or not at all.
///
/// The future is dropped when the attempt times out, when its hold is lost, and at the end of a shutdown: keep
/// nothing half-done across an await that is not in the transaction.
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
///         let balance = sqlx::query_scalar("UPDATE account SET cents = cents + $2 WHERE id = $1 RETURNING cents")
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
    /// The job's data. What does not decode into it is a failed attempt, tried again by the queue's policy.
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
}

#[async_trait]
impl<H: JobHandler> JobHandler for Arc<H> {
    type Data = H::Data;
    type Output = H::Output;
    type Error = H::Error;

    async fn handle(&self, job: &mut ActiveJob, data: H::Data) -> Result<H::Output, H::Error> {
        self.as_ref().handle(job, data).await
    }
}

/// A failed attempt, and whether there is to be another.
///
/// Any [`std::error::Error`] becomes one by `?` and means retry. For errors that do not implement that trait (a
/// string, `anyhow::Error`) there are [`retry`](Self::retry) and [`fail`](Self::fail).
pub struct JobError {
    error: BoxError,
    verdict: Verdict,
}

/// What a failed attempt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another attempt, after the given time or the policy's.
    Retry(Option<Duration>),
    /// None.
    Fail,
}

impl JobError {
    /// Try again after the policy's delay, if attempts are left.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self {
            error: error.into(),
            verdict: Verdict::Retry(None),
        }
    }

    /// Try again after `delay`, if attempts are left. The rest of the group waits.
    pub fn retry_after(error: impl Into<BoxError>, delay: Duration) -> Self {
        Self {
            error: error.into(),
            verdict: Verdict::Retry(Some(delay.min(crate::retry::MAX_DELAY))),
        }
    }

    /// Do not try again: the job ends as `failed`.
    pub fn fail(error: impl Into<BoxError>) -> Self {
        Self {
            error: error.into(),
            verdict: Verdict::Fail,
        }
    }

    pub(crate) fn into_failure(self, attempt: u32) -> (Failure, Verdict) {
        let kind = match self.verdict {
            Verdict::Retry(_) => FailureKind::Error,
            Verdict::Fail => FailureKind::Permanent,
        };
        let mut chain = Vec::new();
        let mut source = self.error.source();
        while let Some(error) = source {
            chain.push(storable(error));
            source = error.source();
        }
        (
            Failure {
                kind,
                message: storable(self.error.as_ref()),
                chain,
                attempt,
            },
            self.verdict,
        )
    }
}

/// An error's message as jsonb can hold it, cut to a length that does no harm to the table.
fn storable(error: &(dyn StdError + 'static)) -> String {
    storable_text(&error.to_string())
}

pub(crate) fn storable_text(text: &str) -> String {
    const LIMIT: usize = 4_000;
    text.chars()
        .take(LIMIT)
        .map(|c| if c == '\0' { '\u{fffd}' } else { c })
        .collect()
}

impl<E: StdError + Send + Sync + 'static> From<E> for JobError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError")
            .field("verdict", &self.verdict)
            .field("error", &self.error)
            .finish()
    }
}

// Not std::error::Error: the blanket From above would then conflict with From<T> for T.
impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// A handler without its types: JSON in, JSON out.
#[async_trait]
pub(crate) trait ErasedHandler: Send + Sync + 'static {
    async fn run(&self, job: &mut ActiveJob, data: &str) -> RunResult;
}

#[async_trait]
impl<H: JobHandler> ErasedHandler for H {
    async fn run(&self, job: &mut ActiveJob, data: &str) -> RunResult {
        let data = match serde_json::from_str(data) {
            Ok(data) => data,
            Err(error) => return RunResult::Broken(FailureKind::Data, storable(&error)),
        };
        let output = match self.handle(job, data).await {
            Ok(output) => output,
            Err(error) => return RunResult::Failed(error.into()),
        };
        match serde_json::to_string(&output) {
            Ok(json) if has_nul(&json) => {
                let message = "the output has a NUL character in a string, which jsonb cannot hold";
                RunResult::Broken(FailureKind::Output, message.to_owned())
            }
            Ok(json) => RunResult::Succeeded(json),
            Err(error) => RunResult::Broken(FailureKind::Output, storable(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::fmt::Error);

    #[test]
    fn any_error_converts_and_keeps_its_chain() {
        let convert = || -> Result<(), JobError> { Err(Outer(std::fmt::Error))? };
        let Err(error) = convert() else {
            panic!("no error")
        };
        let (failure, verdict) = error.into_failure(4);
        assert_eq!(verdict, Verdict::Retry(None));
        assert_eq!((failure.message.as_str(), failure.attempt), ("outer", 4));
        assert_eq!(failure.chain, [std::fmt::Error.to_string()]);
    }

    #[test]
    fn a_message_is_cut_and_loses_its_nul() {
        assert_eq!(storable_text("a\0b"), "a\u{fffd}b");
        assert_eq!(storable_text(&"x".repeat(9_000)).len(), 4_000);
    }
}

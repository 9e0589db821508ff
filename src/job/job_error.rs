//! The error of a handler, and what it asks for.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::job::job::{Failure, FailureKind};
use crate::job::reason::{source_of, words_of};

type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// A failed attempt, and whether another one follows.
///
/// Any [`std::error::Error`] becomes one by `?` and means retry. For errors that do not implement
/// that trait (a string, `anyhow::Error`) there are [`retry`](Self::retry) and
/// [`fail`](Self::fail).
pub struct JobError {
    error: BoxError,
    decision: FailureDecision,
}

/// The decision that a failed attempt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureDecision {
    /// Another attempt, after this delay or else the policy's.
    Retry(Option<Duration>),
    /// No other attempt.
    Fail,
    /// The same job again, after this delay. No attempt counts.
    Snooze(Duration),
}

impl JobError {
    /// Returns an error that means: try again after the policy's delay, if attempts are left.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self { error: error.into(), decision: FailureDecision::Retry(None) }
    }

    /// Returns an error that means: try again after `delay`, if attempts are left. The rest of the
    /// group waits.
    pub fn retry_after(error: impl Into<BoxError>, delay: Duration) -> Self {
        Self {
            error: error.into(),
            decision: FailureDecision::Retry(Some(delay.min(crate::job::retry::MAX_DELAY))),
        }
    }

    /// Returns an error that means: do not try again, the job ends as `failed`.
    pub fn fail(error: impl Into<BoxError>) -> Self {
        Self { error: error.into(), decision: FailureDecision::Fail }
    }

    /// Returns a value that means: not yet. The writes of [`ActiveJob::tx`] are rolled back, and
    /// the job runs again after `delay` (at most 100 years). It keeps its place: the rest
    /// of the group waits. No attempt counts, and nothing is written to the job's error and
    /// history.
    ///
    /// A job may do so [`max_snoozes`](crate::QueueOptions::max_snoozes) times; the next one is a
    /// failed attempt. To keep the writes and run again there is [`ActiveJob::again_after`]. If a
    /// partner takes no more requests for a while, [`ActiveJob::rest_group`] keeps the group's
    /// other jobs from it too.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use seriatim::JobError;
    /// # fn document_is_scanned() -> bool { false }
    /// fn index() -> Result<(), JobError> {
    ///     if !document_is_scanned() {
    ///         return Err(JobError::snooze(Duration::from_secs(30)));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// [`ActiveJob::tx`]: crate::ActiveJob::tx
    /// [`ActiveJob::again_after`]: crate::ActiveJob::again_after
    /// [`ActiveJob::rest_group`]: crate::ActiveJob::rest_group
    pub fn snooze(delay: Duration) -> Self {
        let delay = delay.min(crate::job::retry::MAX_DELAY);
        Self {
            error: format!("snoozed for {delay:?}").into(),
            decision: FailureDecision::Snooze(delay),
        }
    }

    /// Returns for how long the job is put off; `None` if the attempt has failed.
    pub(crate) fn snoozed(&self) -> Option<Duration> {
        match self.decision {
            FailureDecision::Snooze(delay) => Some(delay),
            FailureDecision::Retry(_) | FailureDecision::Fail => None,
        }
    }

    /// Returns how an attempt with this error has failed.
    pub(crate) fn kind(&self) -> FailureKind {
        match self.decision {
            FailureDecision::Retry(_) | FailureDecision::Snooze(_) => FailureKind::Error,
            FailureDecision::Fail => FailureKind::Permanent,
        }
    }

    /// Returns the error itself.
    pub(crate) fn inner(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self.error.as_ref()
    }

    pub(crate) fn into_failure(self, attempt: u32) -> (Failure, FailureDecision) {
        let kind = self.kind();
        let mut chain = Vec::new();
        let mut source = source_of(self.error.as_ref());
        while let Some(error) = source {
            chain.push(storable(error));
            source = source_of(error);
        }
        let mut message = storable(self.error.as_ref());
        if waited_for_a_pool(self.error.as_ref()) {
            message.push_str(POOL_ADVICE);
        }
        (Failure { kind, message, chain, attempt }, self.decision)
    }
}

/// The advice for a handler that waited for a connection in vain.
const POOL_ADVICE: &str = " (all connections of a pool were in use. If it is the processor's pool: write through job.tx(), whose \
    connection the job has; or raise max_connections by what handlers take beside it; or lower the queue's concurrency)";

/// Returns whether a pool gave no connection in time.
fn waited_for_a_pool(error: &(dyn StdError + 'static)) -> bool {
    matches!(error.downcast_ref::<sqlx::Error>(), Some(sqlx::Error::PoolTimedOut))
        || error.source().is_some_and(waited_for_a_pool)
}

/// Returns an error's message as `jsonb` can hold it, cut to 4,000 characters.
pub(crate) fn storable(error: &(dyn StdError + 'static)) -> String {
    storable_text(&words_of(error))
}

pub(crate) fn storable_text(text: &str) -> String {
    const LIMIT: usize = 4_000;
    text.chars().take(LIMIT).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}

impl<E: StdError + Send + Sync + 'static> From<E> for JobError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError")
            .field("verdict", &self.decision)
            .field("error", &self.error)
            .finish()
    }
}

// Not `std::error::Error`: the blanket `From` above would then conflict with `From<T> for T`.
impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
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
        let Err(error) = convert() else { panic!("no error") };
        let (failure, decision) = error.into_failure(4);
        assert_eq!(decision, FailureDecision::Retry(None));
        assert_eq!((failure.message.as_str(), failure.attempt), ("outer", 4));
        assert_eq!(failure.chain, [std::fmt::Error.to_string()]);
    }

    #[test]
    fn a_message_is_cut_and_loses_its_nul() {
        assert_eq!(storable_text("a\0b"), "a\u{fffd}b");
        assert_eq!(storable_text(&"x".repeat(9_000)).len(), 4_000);
    }
}

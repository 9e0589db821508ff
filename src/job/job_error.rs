//! The error of a handler, and what it asks for.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::job::caught::caught;
use crate::job::job::{Failure, FailureKind};
use crate::job::reason::{CHAIN_LIMIT, causes, source_of, words_of};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// A failed attempt, and whether another one follows.
///
/// `?` converts any [`std::error::Error`], and means retry. Because that conversion is for all
/// such errors, Rust allows none for `anyhow::Error`, `eyre::Report` or boxed errors. The trait
/// [`OrFail`](crate::OrFail) converts these as well, and decides about the job:
/// `import().or_retry()?`, `text.parse::<u32>().or_fail()?`.
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
    /// The attempt failed outside of the handler: the kind says what follows.
    Broken(FailureKind),
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

    /// Returns an error of the library's own, whose kind says what follows.
    pub(crate) fn broken(kind: FailureKind, message: String) -> Self {
        Self { error: message.into(), decision: FailureDecision::Broken(kind) }
    }

    /// Returns for how long the job is put off; `None` if the attempt has failed.
    pub(crate) fn snoozed(&self) -> Option<Duration> {
        self.decision.snoozed()
    }

    /// Returns whether the handler, or a layer, has failed with it.
    pub(crate) fn is_the_handlers(&self) -> bool {
        matches!(self.decision, FailureDecision::Retry(_) | FailureDecision::Fail)
    }

    /// Returns how an attempt with this error has failed.
    pub(crate) fn kind(&self) -> FailureKind {
        self.decision.kind()
    }

    /// Returns the error itself.
    pub(crate) fn inner(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self.error.as_ref()
    }

    /// Returns the error in words. Its `Display`, its `source` and its drop are the application's:
    /// a panic of the first two is a failure of the kind [`FailureKind::Panic`], with the decision
    /// of the handler.
    pub(crate) fn into_words(self) -> ErrorWords {
        let Self { error, decision } = self;
        let words = caught(|| {
            let mut message = storable(error.as_ref());
            if causes(error.as_ref()).any(waited_for_a_pool) {
                message.push_str(POOL_ADVICE);
            }
            let sources =
                std::iter::successors(source_of(error.as_ref()), |error| source_of(*error));
            (message, sources.take(CHAIN_LIMIT).map(storable).collect())
        });
        let dropped = caught(|| drop(error));
        let (kind, mut message, chain) = match words {
            Ok((message, chain)) => (decision.kind(), message, chain),
            Err(panic) => {
                let message = format!("the error of the handler panicked as it was read: {panic}");
                (FailureKind::Panic, message, Vec::new())
            }
        };
        if let Err(panic) = dropped {
            message = format!("{message} (the error panicked as it was dropped: {panic})");
        }
        ErrorWords { kind, message: storable_text(&message), chain, decision }
    }
}

impl FailureDecision {
    /// Returns for how long the job is put off; `None` if the attempt has failed.
    pub(crate) fn snoozed(self) -> Option<Duration> {
        match self {
            Self::Snooze(delay) => Some(delay),
            Self::Retry(_) | Self::Fail | Self::Broken(_) => None,
        }
    }

    fn kind(self) -> FailureKind {
        match self {
            Self::Retry(_) | Self::Snooze(_) => FailureKind::Error,
            Self::Fail => FailureKind::Permanent,
            Self::Broken(kind) => kind,
        }
    }
}

/// A handler's error in words. Nothing in it is the application's: it may be read, kept and dropped
/// where a panic would end more than an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ErrorWords {
    kind: FailureKind,
    message: String,
    chain: Vec<String>,
    decision: FailureDecision,
}

impl ErrorWords {
    /// Returns for how long the job is put off; `None` if the attempt has failed.
    pub(crate) fn snoozed(&self) -> Option<Duration> {
        self.decision.snoozed()
    }

    pub(crate) fn into_failure(self, attempt: u32) -> (Failure, FailureDecision) {
        let Self { kind, message, chain, decision } = self;
        (Failure { kind, message, chain, attempt }, decision)
    }
}

/// The advice for a handler that waited for a connection in vain.
const POOL_ADVICE: &str = " (all connections of a pool were in use. If it is the processor's pool: write through job.tx(), whose \
    connection the job has; or raise max_connections by what handlers take beside it; or lower the queue's concurrency)";

/// Returns whether a pool gave no connection in time.
fn waited_for_a_pool(error: &(dyn StdError + 'static)) -> bool {
    matches!(error.downcast_ref::<sqlx::Error>(), Some(sqlx::Error::PoolTimedOut))
}

/// Bounds the message of a failure, in characters: more is cut.
pub(crate) const MESSAGE_LIMIT: usize = 4_000;

/// Returns an error's message as `jsonb` can hold it, cut to 4,000 characters.
pub(crate) fn storable(error: &(dyn StdError + 'static)) -> String {
    storable_text(&words_of(error))
}

pub(crate) fn storable_text(text: &str) -> String {
    text.chars().take(MESSAGE_LIMIT).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
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
        let (failure, decision) = error.into_words().into_failure(4);
        assert_eq!(decision, FailureDecision::Retry(None));
        assert_eq!((failure.message.as_str(), failure.attempt), ("outer", 4));
        assert_eq!(failure.chain, [std::fmt::Error.to_string()]);
    }

    /// An error that is hostile where `place` says.
    #[derive(Debug)]
    struct Hostile(&'static str);

    impl fmt::Display for Hostile {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                "display" => panic!("no words"),
                "endless" => loop {
                    f.write_str("more, and ")?;
                },
                "refuses" => Err(fmt::Error),
                _ => f.write_str("hostile"),
            }
        }
    }

    impl StdError for Hostile {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            match self.0 {
                "source" => panic!("no source"),
                "itself" => Some(self),
                _ => None,
            }
        }
    }

    impl Drop for Hostile {
        fn drop(&mut self) {
            assert!(self.0 != "drop" && self.0 != "display", "not dropped");
        }
    }

    #[test]
    fn a_hostile_error_is_read_to_an_end() {
        let read = |place| JobError::fail(Hostile(place)).into_words().into_failure(1);
        for (place, kind, starts) in [
            (
                "display",
                FailureKind::Panic,
                "the error of the handler panicked as it was read: no words (the error panicked",
            ),
            (
                "source",
                FailureKind::Panic,
                "the error of the handler panicked as it was read: no source",
            ),
            (
                "drop",
                FailureKind::Permanent,
                "hostile (the error panicked as it was dropped: not dropped)",
            ),
            ("endless", FailureKind::Permanent, "more, and more"),
            ("refuses", FailureKind::Permanent, ""),
            ("itself", FailureKind::Permanent, "hostile"),
        ] {
            let (failure, decision) = read(place);
            assert_eq!((failure.kind, decision), (kind, FailureDecision::Fail), "{place}");
            assert!(failure.message.starts_with(starts), "{place}: {}", failure.message);
            assert_eq!(failure.chain.len(), if place == "itself" { CHAIN_LIMIT } else { 0 });
        }
    }

    #[test]
    fn a_message_is_cut_and_loses_its_nul() {
        assert_eq!(storable_text("a\0b"), "a\u{fffd}b");
        assert_eq!(storable_text(&"x".repeat(9_000)).len(), 4_000);
    }
}

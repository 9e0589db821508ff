//! How a run ended, and what follows from it. Pure: no clock, no database.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::job::job::{Failure, FailureKind};
use crate::job::job_error::{ErrorWords, FailureDecision, JobError};
use crate::job::queue_options::OutOfAttempts;
use crate::job::retry::RetryPolicy;

/// The message of an attempt that left no trace, and was the last one. `%s`, as SQL's `format` has
/// it: its number.
pub(crate) const EXHAUSTED: &str =
    "attempt %s ended without a trace (its worker died), and no attempt is left";
/// The message of an attempt that put its job off once too often, likewise: how often before.
pub(crate) const SNOOZED_OUT: &str =
    "it was snoozed %s times, as often as it may be, and is not ready";
/// The message of a job that expired, likewise: when.
pub(crate) const EXPIRED: &str = "it expired at %s";

/// The result of a claimed job.
#[derive(Debug)]
pub(crate) enum RunResult {
    /// The handler returned `Ok`; its output as JSON.
    Succeeded(String),
    /// The handler returned `Ok`, and asked for another run after this delay.
    Again(Duration),
    /// The handler returned an error.
    Failed(ErrorWords),
    /// The attempt failed in another way.
    Broken(FailureKind, String),
    /// Its attempts were used up before this claim, because its workers died: the handler did not
    /// run.
    Exhausted,
    /// It expired at this time, before this claim: the handler did not run.
    Expired(DateTime<Utc>),
    /// It is older than its queue's workers accept: the handler did not run.
    Ignored,
    /// It was cancelled before the handler ran.
    Cancelled,
    /// A shutdown ended the attempt, or it timed out while it waited for a connection of the pool.
    Released,
}

impl RunResult {
    /// Returns whether it stands only if the handler's writes are committed with it.
    pub(crate) fn keeps_writes(&self) -> bool {
        matches!(self, Self::Succeeded(_) | Self::Again(_))
    }

    /// Returns the result of a run of a job that was put off `snoozes` times, at most `max` of
    /// which are allowed.
    pub(crate) fn bounded(self, snoozes: u32, max: u32) -> Self {
        let puts_off = match &self {
            Self::Again(_) => true,
            Self::Failed(error) => error.snoozed().is_some(),
            _ => false,
        };
        if !puts_off || snoozes < max {
            return self;
        }
        Self::from(JobError::retry(SNOOZED_OUT.replacen("%s", &snoozes.to_string(), 1)))
    }
}

impl From<JobError> for RunResult {
    fn from(error: JobError) -> Self {
        Self::Failed(error.into_words())
    }
}

/// The numbers of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Its number, from 1.
    pub(crate) number: u32,
    /// The attempts that count against the limit, this one included.
    pub(crate) counted: u32,
    /// The limit.
    pub(crate) max: u32,
    /// A request to cancel came while the handler ran.
    pub(crate) cancel_requested: bool,
    /// Whether data that does not decode is tried again.
    pub(crate) retry_undecodable: bool,
}

/// The outcome that the settle records.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Succeeded {
        result: String,
    },
    Retried {
        failure: Failure,
        delay: Duration,
    },
    /// Put off. With `keeps_writes` it stands only together with the handler's writes.
    Snoozed {
        delay: Duration,
        keeps_writes: bool,
    },
    Failed {
        failure: Failure,
        then: OutOfAttempts,
    },
    Cancelled,
    Ignored,
    Released,
}

/// How an attempt ended, as logs and [`Event`](crate::observe::Event)s have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndedAs {
    /// The job has succeeded.
    Succeeded,
    /// The attempt failed, and another one follows.
    Retried,
    /// The handler [put the job off](crate::JobError::snooze), or asked for
    /// [another run](crate::ActiveJob::again_after): the attempt does not count.
    Snoozed,
    /// The attempt failed, and the job with it.
    Failed,
    /// The job expired before its handler began.
    Expired,
    /// An operator cancelled the job.
    Cancelled,
    /// The job is older than its queue's [`ignore_before`](crate::QueueOptions::ignore_before).
    Ignored,
    /// The job was given back, by a shutdown or for lack of a connection: the attempt does not
    /// count.
    Released,
}

impl EndedAs {
    /// Returns the word that logs use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Retried => "retried",
            Self::Snoozed => "snoozed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Ignored => "ignored",
            Self::Released => "released",
        }
    }
}

impl Outcome {
    /// Returns whether it stands only if the handler's writes are committed with it.
    pub(crate) fn keeps_writes(&self) -> bool {
        matches!(self, Self::Succeeded { .. } | Self::Snoozed { keeps_writes: true, .. })
    }

    /// Returns the output, the failure, and the time until the job runs again.
    pub(crate) fn into_parts(self) -> (Option<Value>, Option<Failure>, Option<Duration>) {
        match self {
            Self::Succeeded { result } => (serde_json::from_str(&result).ok(), None, None),
            Self::Retried { failure, delay } => (None, Some(failure), Some(delay)),
            Self::Snoozed { delay, .. } => (None, None, Some(delay)),
            Self::Failed { failure, .. } => (None, Some(failure), None),
            Self::Cancelled | Self::Ignored | Self::Released => (None, None, None),
        }
    }

    /// Returns how the attempt ended.
    pub(crate) fn ended_as(&self) -> EndedAs {
        match self {
            Self::Succeeded { .. } => EndedAs::Succeeded,
            Self::Retried { .. } => EndedAs::Retried,
            Self::Snoozed { .. } => EndedAs::Snoozed,
            Self::Failed { failure, .. } if failure.kind == FailureKind::Expired => {
                EndedAs::Expired
            }
            Self::Failed { .. } => EndedAs::Failed,
            Self::Cancelled => EndedAs::Cancelled,
            Self::Ignored => EndedAs::Ignored,
            Self::Released => EndedAs::Released,
        }
    }
}

/// Bounds the wait of a job whose kind is unknown: a process that knows it may start any time.
const UNKNOWN_KIND_WAIT: Duration = Duration::from_secs(30);

/// Decides the outcome of every result; `chance` (0 to 1) is the jitter.
pub(crate) fn decide(
    result: RunResult,
    attempt: Attempt,
    policy: &RetryPolicy,
    then: OutOfAttempts,
    chance: f64,
) -> Outcome {
    let (failure, decision) = match result {
        RunResult::Succeeded(result) => return Outcome::Succeeded { result },
        RunResult::Cancelled => return Outcome::Cancelled,
        RunResult::Ignored => return Outcome::Ignored,
        RunResult::Released if attempt.cancel_requested => return Outcome::Cancelled,
        RunResult::Released => return Outcome::Released,
        // A request to cancel it counts when it comes again: what it wrote stays.
        RunResult::Again(delay) => return Outcome::Snoozed { delay, keeps_writes: true },
        RunResult::Failed(error) => error.into_failure(attempt.number),
        RunResult::Broken(kind, message) => {
            let failure = Failure { kind, message, chain: Vec::new(), attempt: attempt.number };
            (failure, FailureDecision::Broken(kind))
        }
        RunResult::Expired(at) => {
            let at = at.to_rfc3339_opts(SecondsFormat::Millis, true);
            let message = EXPIRED.replacen("%s", &at, 1);
            let kind = FailureKind::Expired;
            (
                Failure { kind, message, chain: Vec::new(), attempt: attempt.number },
                FailureDecision::Fail,
            )
        }
        RunResult::Exhausted => {
            let message = EXHAUSTED.replacen("%s", &attempt.number.to_string(), 1);
            let kind = FailureKind::WorkerLost;
            (
                Failure { kind, message, chain: Vec::new(), attempt: attempt.number },
                FailureDecision::Fail,
            )
        }
    };
    if attempt.cancel_requested {
        return Outcome::Cancelled;
    }
    if failure.kind == FailureKind::Expired {
        // Its group has no reason to wait for it.
        return Outcome::Failed { failure, then: OutOfAttempts::Continue };
    }
    let (last, after) = match decision {
        FailureDecision::Snooze(delay) => return Outcome::Snoozed { delay, keeps_writes: false },
        FailureDecision::Retry(after) => (attempt.counted >= attempt.max, after),
        // Another attempt would write again what this one has committed.
        FailureDecision::Fail | FailureDecision::Broken(FailureKind::TransactionEnded) => {
            (true, None)
        }
        // Another process has a handler, or will have one. The attempt does not count.
        FailureDecision::Broken(FailureKind::UnknownKind) => {
            (false, Some(policy.delay(attempt.number, chance).min(UNKNOWN_KIND_WAIT)))
        }
        // The data will be the same.
        FailureDecision::Broken(FailureKind::Data) if !attempt.retry_undecodable => (true, None),
        FailureDecision::Broken(_) => (attempt.counted >= attempt.max, None),
    };
    if last {
        return Outcome::Failed { failure, then };
    }
    let delay = after.unwrap_or_else(|| policy.delay(attempt.counted, chance));
    Outcome::Retried { failure, delay }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, max: u32) -> Attempt {
        Attempt { number, counted: number, max, cancel_requested: false, retry_undecodable: false }
    }

    fn decided(result: RunResult, attempt: Attempt) -> Outcome {
        decide(result, attempt, &RetryPolicy::new(9), OutOfAttempts::Halt, 0.0)
    }

    #[test]
    fn errors_are_retried_by_the_policy_until_attempts_run_out() {
        let error = || RunResult::from(JobError::retry("no luck"));
        assert!(matches!(
            decided(error(), attempt(2, 3)),
            Outcome::Retried { delay, failure } if delay == Duration::from_secs(2) && failure.message == "no luck"
        ));
        assert!(matches!(
            decided(error(), attempt(3, 3)),
            Outcome::Failed { then: OutOfAttempts::Halt, .. }
        ));
    }

    #[test]
    fn the_handler_may_name_the_delay_or_give_up() {
        let later = JobError::retry_after("busy", Duration::from_secs(77));
        assert!(matches!(
            decided(RunResult::from(later), attempt(1, 3)),
            Outcome::Retried { delay, .. } if delay == Duration::from_secs(77)
        ));
        let never = RunResult::from(JobError::fail("wrong account"));
        assert!(matches!(
            decided(never, attempt(1, 3)),
            Outcome::Failed { failure, .. } if failure.kind == FailureKind::Permanent
        ));
    }

    #[test]
    fn a_snooze_is_no_failure_until_there_were_too_many() {
        let ms = Duration::from_millis(5);
        let snooze = || RunResult::from(JobError::snooze(ms));
        let (bare, kept) = (
            Outcome::Snoozed { delay: ms, keeps_writes: false },
            Outcome::Snoozed { delay: ms, keeps_writes: true },
        );
        assert_eq!(decided(snooze().bounded(2, 3), attempt(3, 3)), bare);
        assert_eq!(decided(RunResult::Again(ms).bounded(2, 3), attempt(3, 3)), kept);
        for last in [snooze(), RunResult::Again(ms)] {
            assert!(matches!(
                decided(last.bounded(3, 3), attempt(1, 3)),
                Outcome::Retried { failure, .. } if failure.message.starts_with("it was snoozed 3 times")
            ));
        }
        let asked = Attempt { cancel_requested: true, ..attempt(1, 3) };
        assert_eq!(decided(snooze(), asked), Outcome::Cancelled);
        assert_eq!(decided(RunResult::Again(ms), asked), kept);
        assert!(RunResult::Succeeded("1".into()).bounded(9, 0).keeps_writes());
    }

    #[test]
    fn a_request_to_cancel_beats_a_retry_but_not_a_success() {
        let asked = Attempt { cancel_requested: true, ..attempt(1, 3) };
        assert_eq!(decided(RunResult::from(JobError::retry("x")), asked), Outcome::Cancelled);
        assert_eq!(decided(RunResult::Released, asked), Outcome::Cancelled);
        let done = RunResult::Succeeded("1".into());
        assert_eq!(decided(done, asked), Outcome::Succeeded { result: "1".into() });
    }

    #[test]
    fn a_transaction_ended_by_hand_is_never_retried() {
        let ended = RunResult::Broken(FailureKind::TransactionEnded, "by hand".into());
        assert!(matches!(
            decided(ended, attempt(1, 3)),
            Outcome::Failed { then: OutOfAttempts::Halt, .. }
        ));
    }

    #[test]
    fn forgiven_attempts_do_not_count() {
        let third_of_two = Attempt { counted: 1, ..attempt(3, 2) };
        let panic = RunResult::Broken(FailureKind::Panic, "boom".into());
        assert!(matches!(
            decided(panic, third_of_two),
            Outcome::Retried { failure, delay } if failure.attempt == 3 && delay == Duration::from_secs(1)
        ));
    }

    #[test]
    fn an_expired_job_fails_and_halts_nothing() {
        let expired = || RunResult::Expired(DateTime::UNIX_EPOCH);
        assert!(matches!(
            decided(expired(), attempt(0, 3)),
            Outcome::Failed { failure, then: OutOfAttempts::Continue }
                if failure.kind == FailureKind::Expired
                    && failure.message == "it expired at 1970-01-01T00:00:00.000Z"
        ));
        let asked = Attempt { cancel_requested: true, ..attempt(0, 3) };
        assert_eq!(decided(expired(), asked), Outcome::Cancelled);
        assert_eq!(decided(RunResult::Ignored, attempt(0, 3)), Outcome::Ignored);
    }
}

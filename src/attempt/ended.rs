//! The event that each ended attempt logs, with the same fields for every outcome. Never the data.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracing::Span;

use crate::job::job::FailureKind;
use crate::job::outcome::Outcome;
use crate::job::queue_options::OutOfAttempts;
use crate::job::waits::Waits;
use crate::store::{Claim, HeldJob};

/// What the event of an attempt says beside its outcome.
#[derive(Debug)]
pub(crate) struct AttemptFacts {
    queue: Arc<str>,
    group: Option<String>,
    pub(in crate::attempt) job: i64,
    name: Option<String>,
    reference: Option<String>,
    attempt: u32,
    pub(in crate::attempt) waits: Waits,
    began: Instant,
    /// How long the handler ran, once it has ended.
    took: OnceLock<Duration>,
}

/// Logs the event at a level.
macro_rules! ended {
    ($level:expr, $facts:expr, $outcome:expr, $failure:expr, $delay:expr, $($message:tt)+) => {{
        let (facts, failure): (&AttemptFacts, Option<&crate::job::job::Failure>) = ($facts, $failure);
        tracing::event!(
            target: "seriatim::job",
            $level,
            queue = &*facts.queue,
            group = facts.group.as_deref(),
            job = facts.job,
            name = facts.name.as_deref(),
            reference = facts.reference.as_deref(),
            attempt = facts.attempt,
            outcome = $outcome,
            duration_ms = facts.took.get().copied().map(millis),
            slot_wait_ms = millis(facts.waits.slot),
            lane_wait_ms = millis(facts.waits.lane),
            retry_in_ms = $delay,
            error.kind = failure.map(|failure| failure.kind.as_str()),
            error.message = failure.map(|failure| &*failure.message),
            $($message)+
        )
    }};
}

impl AttemptFacts {
    /// Of an attempt that begins now.
    pub(in crate::attempt) fn new(queue: &Arc<str>, claim: &Claim, held: &HeldJob) -> Self {
        let began = Instant::now();
        let waits = held.waits.map(|(waits, claimed)| waits.at_begin(began - claimed));
        Self {
            queue: Arc::clone(queue),
            group: claim.group.clone(),
            job: claim.job,
            name: held.name.clone(),
            reference: held.reference.clone(),
            attempt: held.attempt,
            waits: waits.unwrap_or_default(),
            began,
            took: OnceLock::new(),
        }
    }

    /// Returns the span that the handler's own lines are in.
    pub(in crate::attempt) fn span(&self) -> Span {
        tracing::info_span!(
            target: "seriatim::job",
            "job",
            queue = &*self.queue,
            group = self.group.as_deref(),
            job = self.job,
            name = self.name.as_deref(),
            attempt = self.attempt,
        )
    }

    /// Records that the handler has ended.
    pub(in crate::attempt) fn record_end(&self) {
        // A handler ends once.
        let _ = self.took.set(self.began.elapsed());
    }

    pub(in crate::attempt) fn log_success(&self) {
        ended!(tracing::Level::DEBUG, self, "succeeded", None, None::<u64>, "job succeeded");
    }

    pub(in crate::attempt) fn log(&self, outcome: &Outcome) {
        use tracing::Level;
        let (none, no_delay) = (None, None::<u64>);
        match outcome {
            Outcome::Succeeded { .. } => self.log_success(),
            Outcome::Cancelled => {
                ended!(Level::INFO, self, "cancelled", none, no_delay, "job cancelled");
            }
            Outcome::Ignored => {
                ended!(Level::INFO, self, "ignored", none, no_delay, "job ignored: it is too old");
            }
            Outcome::Released => {
                ended!(Level::INFO, self, "released", none, no_delay, "job released");
            }
            Outcome::Retried { failure, delay } => {
                let delay = millis(*delay);
                let message = "attempt failed, will be retried";
                ended!(Level::INFO, self, "retried", Some(failure), Some(delay), "{message}");
            }
            Outcome::Failed { failure, then } => {
                let expired = failure.kind == FailureKind::Expired;
                let outcome = if expired { "expired" } else { "failed" };
                let message = self.advice(*then);
                ended!(Level::ERROR, self, outcome, Some(failure), no_delay, "job failed{message}");
            }
        }
    }

    /// Returns what a failed job means for its group, and the command that helps.
    fn advice(&self, then: OutOfAttempts) -> String {
        let Some(group) = &self.group else { return String::new() };
        let (queue, group, job) = (shell_word(&self.queue), shell_word(group), self.job);
        match then {
            OutOfAttempts::Continue => String::new(),
            OutOfAttempts::Halt => format!(
                ", and its group is halted until retry, skip or unhalt_group: `seriatim lane {queue} {group}`"
            ),
            OutOfAttempts::HaltFor { deadline, .. } => format!(
                ", and its group is halted for {deadline:?}, or until retry, skip or unhalt_group: `seriatim lane {queue} {group}`"
            ),
            OutOfAttempts::Park => format!(
                ", and the jobs behind it are parked: `seriatim parked {queue} redrive {job}`"
            ),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a name as a shell takes it for one word.
fn shell_word(name: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/@%+=,".contains(c);
    if name.chars().all(plain) && !name.starts_with('-') {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("'{}'", name.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_of_a_shell() {
        assert_eq!(shell_word("account-42"), "account-42");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's; rm"), r"'it'\''s; rm'");
        assert_eq!(shell_word("-x"), "'-x'");
    }
}

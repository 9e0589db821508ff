//! Policies for failed attempts: the settings that are stored for the whole fleet go before the
//! options of a processor.

use serde::{Deserialize, Serialize};

use crate::job::interval::Interval;
use crate::job::queue_options::{AfterHalt, OutOfAttempts, QueueOptions};
use crate::job::retry::{DEFAULT_CAP, RetryPolicy};

/// An [`OutOfAttempts`] as the database has it, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct StoredOutOfAttempts {
    out_of_attempts: Option<Word>,
    halt_for: Option<Interval>,
    halt_then: Option<AfterHalt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Continue,
    Halt,
    Park,
}

impl StoredOutOfAttempts {
    /// Returns what it says; `None` if nothing is stored.
    pub(crate) fn policy(self) -> Option<OutOfAttempts> {
        Some(match (self.out_of_attempts?, self.halt_for, self.halt_then) {
            (Word::Continue, ..) => OutOfAttempts::Continue,
            (Word::Park, ..) => OutOfAttempts::Park,
            (Word::Halt, Some(deadline), Some(then)) => {
                OutOfAttempts::HaltFor { deadline: deadline.0, then }
            }
            (Word::Halt, ..) => OutOfAttempts::Halt,
        })
    }
}

impl From<Option<OutOfAttempts>> for StoredOutOfAttempts {
    fn from(policy: Option<OutOfAttempts>) -> Self {
        let stored = |word| Self { out_of_attempts: Some(word), ..Self::default() };
        match policy {
            None => Self::default(),
            Some(OutOfAttempts::Continue) => stored(Word::Continue),
            Some(OutOfAttempts::Park) => stored(Word::Park),
            Some(OutOfAttempts::Halt) => stored(Word::Halt),
            Some(OutOfAttempts::HaltFor { deadline, then }) => Self {
                halt_for: Some(Interval(deadline)),
                halt_then: Some(then),
                ..stored(Word::Halt)
            },
        }
    }
}

/// A policy for failed attempts: of a queue's settings, of one of its jobs, or of a processor.
/// `None`: not set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct FailurePolicy {
    pub(crate) max_attempts: Option<u32>,
    pub(crate) backoff: Option<Interval>,
    pub(crate) backoff_cap: Option<Interval>,
    #[serde(flatten)]
    pub(crate) then: StoredOutOfAttempts,
    pub(crate) dead_letter_queue: Option<String>,
}

impl FailurePolicy {
    /// Returns the attempts and waits that count, where a processor says `own`. The jitter stays
    /// the processor's.
    pub(crate) fn retry(&self, own: &RetryPolicy) -> RetryPolicy {
        let RetryPolicy { max_attempts, base, factor, cap, jitter } = own.clone();
        let (base, factor, cap) = match self.backoff {
            // As receivers wait.
            Some(base) => (base.0, 2.0, DEFAULT_CAP),
            None => (base, factor, cap),
        };
        let max_attempts = self.max_attempts.unwrap_or(max_attempts);
        let cap = self.backoff_cap.map_or(cap, |cap| cap.0);
        RetryPolicy { max_attempts, base, factor, cap, jitter }
    }

    /// Returns what a job that is out of attempts does to its group, where a processor says `own`.
    /// Behind a job that goes to a dead-letter queue the group goes on.
    pub(crate) fn then(&self, own: OutOfAttempts) -> OutOfAttempts {
        let moved = self.dead_letter_queue.as_ref().map(|_| OutOfAttempts::Continue);
        self.then.policy().or(moved).unwrap_or(own)
    }

    /// Returns where what a processor says does not count: (setting, what it says, what counts).
    pub(crate) fn overrides(&self, own: &Self) -> Vec<(&'static str, String, String)> {
        let mut found = Vec::new();
        let mut compare =
            |setting, said: Option<String>, counts: Option<String>| match (said, counts) {
                (Some(said), Some(counts)) if said != counts => found.push((setting, said, counts)),
                _ => {}
            };
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let time = |time: Option<Interval>| time.map(|time| format!("{:?}", time.0));
        compare("max_attempts", number(own.max_attempts), number(self.max_attempts));
        compare("backoff", time(own.backoff), time(self.backoff));
        compare("backoff_cap", time(own.backoff_cap), time(self.backoff_cap));
        if let Some(said) = own.then.policy() {
            let counts = self.then(said).to_string();
            compare("out_of_attempts", Some(said.to_string()), Some(counts));
        }
        found
    }
}

impl From<&QueueOptions> for FailurePolicy {
    fn from(options: &QueueOptions) -> Self {
        let RetryPolicy { max_attempts, base, cap, .. } = options.retry;
        Self {
            max_attempts: Some(max_attempts),
            backoff: Some(Interval(base)),
            backoff_cap: Some(Interval(cap)),
            then: Some(options.out_of_attempts).into(),
            dead_letter_queue: None,
        }
    }
}

/// The stored values that count at a failure of one job.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct AtFailure {
    pub(crate) cancel_requested: bool,
    #[serde(flatten)]
    pub(crate) policy: FailurePolicy,
}

/// A setting of a processor that does not count, because the queue's settings say otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OverriddenOption {
    /// The queue.
    pub queue: String,
    /// The node that the processor runs on.
    pub node: String,
    /// The setting, as `configure_queue` names it.
    pub setting: &'static str,
    /// The processor's value.
    pub said: String,
    /// The value of the queue's settings.
    pub counts: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stored(json: &str) -> FailurePolicy {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_is_stored_goes_before_what_a_processor_says() {
        let own = RetryPolicy::new(3).base(Duration::from_millis(5)).factor(3.0).jitter(0.1);
        let nothing = FailurePolicy::default();
        assert_eq!(nothing.retry(&own), own);
        assert_eq!(nothing.then(OutOfAttempts::Park), OutOfAttempts::Park);

        let all = stored(
            r#"{"max_attempts": 7, "backoff": "60000 ms", "out_of_attempts": "halt", "halt_for": "1500 ms",
                "halt_then": "park", "in_flight_limit": 5}"#,
        );
        let counts = RetryPolicy::new(7).base(Duration::from_mins(1)).jitter(0.1);
        assert_eq!(all.retry(&own), counts);
        let halt =
            OutOfAttempts::HaltFor { deadline: Duration::from_millis(1500), then: AfterHalt::Park };
        assert_eq!(all.then(OutOfAttempts::Continue), halt);
        assert_eq!(StoredOutOfAttempts::from(Some(halt)), all.then);

        // A cap alone bounds the processor's own waits.
        let capped = stored(r#"{"backoff_cap": "7 ms"}"#);
        assert_eq!(capped.retry(&own), own.clone().cap(Duration::from_millis(7)));
        let moves = stored(r#"{"dead_letter_queue": "dead"}"#);
        assert_eq!(moves.then(OutOfAttempts::Halt), OutOfAttempts::Continue);
    }

    #[test]
    fn only_what_differs_is_overridden() {
        let own = FailurePolicy::from(&QueueOptions::new("q").out_of_attempts(OutOfAttempts::Halt));
        assert_eq!(FailurePolicy::default().overrides(&own), []);
        assert_eq!(own.overrides(&own), []);
        let some =
            stored(r#"{"max_attempts": 7, "backoff": "1000 ms", "out_of_attempts": "park"}"#);
        let found = some.overrides(&own);
        let found: Vec<_> = found.iter().map(|(what, said, it)| (*what, &**said, &**it)).collect();
        assert_eq!(found, [("max_attempts", "10", "7"), ("out_of_attempts", "halt", "park")]);
    }
}

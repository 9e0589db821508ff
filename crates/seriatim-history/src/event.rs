//! The format: one event per line, as JSON. `docs/history.md` explains each.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

pub use crate::words::{Counted, Delayed, Ended, Enqueued, Found, Left, Of, Said, When};

/// Microseconds since any moment, the same for the whole history.
pub type Time = i64;

/// The recorder's name for a job, a process or an effect. Numbers are read as text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Name(
    /// As the recorder wrote it.
    pub String,
);

/// An observation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// Settings of the whole history.
    History {
        /// The version of the format.
        version: u32,
        /// How far a time may be from the true one, either way.
        #[serde(default)]
        uncertainty: Time,
        /// How delayed jobs affect the jobs behind them.
        #[serde(default)]
        delayed: Delayed,
        /// Jobs may be claimed while earlier ones run.
        #[serde(default)]
        followers: bool,
    },
    /// An enqueue, and its answer to the producer.
    Enqueue {
        /// The job.
        job: Name,
        /// Its queue.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        queue: String,
        /// Its group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Name>,
        /// The process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<Name>,
        /// When the call began.
        begin: Time,
        /// When the commit was acknowledged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
        /// How it ended.
        outcome: Enqueued,
        /// With the outcome `with`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<Of>,
        /// The queue's own number of the job, by which it orders a group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<i64>,
        /// Its limit of attempts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u32>,
        /// When it is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run_at: Option<Time>,
        /// The key that limits how many groups run at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_key: Option<Name>,
        /// The batch that it joined.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<Name>,
    },
    /// The queue enqueued a job by itself, for a batch or a schedule.
    Made {
        /// The job.
        job: Name,
        /// The batch whose follow-up it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<Name>,
        /// The schedule that it was made by, ...
        #[serde(default, skip_serializing_if = "Option::is_none")]
        schedule: Option<Name>,
        /// ... and the time that it was made for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<Time>,
        /// Its queue.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        queue: String,
        /// Its group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Name>,
        /// It was not there before.
        begin: Time,
        /// By then it was there.
        end: Time,
        /// The queue's own number of the job, by which it orders a group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<i64>,
    },
    /// How many may run at once, from then on.
    Limit {
        /// The queue.
        queue: String,
        /// The things that it counts.
        #[serde(default)]
        of: Counted,
        /// How many; `None`: any number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// When the call began.
        begin: Time,
        /// When the call had returned.
        end: Time,
    },
    /// How many jobs of a queue may start in a time, from then on.
    Rate {
        /// The queue.
        queue: String,
        /// How many; `None`: any number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        starts: Option<u32>,
        /// In this time.
        per: Time,
        /// How many of them at once.
        burst: u32,
        /// When the call began.
        begin: Time,
        /// When the call had returned.
        end: Time,
    },
    /// A batch was opened.
    Batch {
        /// The batch.
        batch: Name,
        /// How its jobs must have ended for its follow-up.
        when: When,
        /// When the call began.
        begin: Time,
        /// `None`: whether it is there is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
    },
    /// A batch was sealed: no job joins any more.
    Seal {
        /// The batch.
        batch: Name,
        /// When the call began.
        begin: Time,
        /// `None`: whether it had an effect is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
    },
    /// A schedule makes a job at each multiple of a time.
    Schedule {
        /// The schedule.
        schedule: Name,
        /// The time between two due times.
        every: Time,
        /// Due times up to here make no job.
        from: Time,
        /// All due times up to here have made theirs; `None`: some may have been missed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
    /// A handler began.
    Start {
        /// The job.
        job: Name,
        /// The number of the attempt.
        attempt: u32,
        /// The process.
        process: Name,
        /// When.
        at: Time,
    },
    /// A handler ended.
    End {
        /// The job.
        job: Name,
        /// The number of the attempt.
        attempt: u32,
        /// The process.
        process: Name,
        /// When.
        at: Time,
        /// How it ended.
        outcome: Ended,
    },
    /// The answer to a settle by receipt.
    Settle {
        /// The job.
        job: Name,
        /// The number of the attempt.
        attempt: u32,
        /// When the call began.
        begin: Time,
        /// When the call had returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
        /// The queue's answer.
        answer: Said,
    },
    /// The job left the line, other than by a handler.
    Leave {
        /// The job.
        job: Name,
        /// How it left.
        #[serde(rename = "as")]
        left: Left,
        /// When the call began.
        begin: Time,
        /// `None`: whether it had an effect is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
    },
    /// A job that had left the line was put back.
    Return {
        /// The job.
        job: Name,
        /// When the call began.
        begin: Time,
        /// `None`: whether it had an effect is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
    },
    /// A process ended.
    Gone {
        /// The process.
        process: Name,
        /// When the call began.
        begin: Time,
        /// When the call had returned.
        end: Time,
    },
    /// Something else went wrong that may have cost attempts.
    Fault {
        /// The fault, in words.
        what: String,
        /// When the call began.
        begin: Time,
        /// When the call had returned.
        end: Time,
    },
    /// A handler is about to write something.
    Effect {
        /// The job.
        job: Name,
        /// The number of the attempt.
        attempt: u32,
        /// Its name.
        key: Name,
        /// When.
        at: Time,
    },
    /// How often an effect is there at the end.
    Found {
        /// Its name.
        key: Name,
        /// How often.
        count: u64,
    },
    /// The queue's answer about a job at the end.
    Status {
        /// The job.
        job: Name,
        /// The status.
        status: Found,
        /// How many of its attempts do not count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forgiven: Option<u32>,
    },
    /// The queue was read, and nothing was left to do.
    Drained {
        /// When.
        at: Time,
    },
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of a history must not reach a terminal unescaped.
        write!(f, "{}", self.0.escape_debug())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                Ok(Name(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Name, E> {
                Ok(Name(text))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

//! The format: one event per line, as JSON. `docs/history.md` explains each.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

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
    },
    /// The queue was read, and nothing was left to do.
    Drained {
        /// When.
        at: Time,
    },
}

/// How a job that waits for its time or its retry affects the jobs behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delayed {
    /// It holds them up.
    #[default]
    Hold,
    /// They pass it: jobs with a `run_at` have no place in their group.
    Pass,
}

/// The answer to an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enqueued {
    /// It is committed.
    Committed,
    /// Its transaction was rolled back.
    RolledBack,
    /// It was a duplicate of another job.
    Duplicate,
    /// Nothing: there was no answer.
    Unknown,
    /// In the transaction of an attempt.
    With,
}

/// An attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Of {
    /// The job.
    pub job: Name,
    /// The number of the attempt.
    pub attempt: u32,
}

/// How a handler ended, by its own report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It succeeded.
    Succeeded,
    /// For good: no further attempt.
    Failed,
    /// With an error, to be tried again.
    Retry,
    /// Told to stop, or dropped: a timeout, a lost claim.
    Dropped,
    /// By a shutdown: the attempt does not count.
    Released,
}

/// The answer to a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It is settled.
    Done,
    /// Another claim has the job.
    Stale,
    /// There was none.
    Unknown,
}

/// How a job left the line, other than by a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// It was cancelled.
    Cancelled,
    /// It was given up.
    Failed,
    /// It expired.
    Expired,
    /// It stepped aside with a job that failed.
    Parked,
}

/// The queue's answer about a job at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It waits still.
    Waiting,
    /// It is parked.
    Parked,
    /// There is no such job.
    Missing,
}

impl Found {
    /// Returns whether the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
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

macro_rules! said {
    ($($type:ty { $($variant:ident: $word:literal),+ $(,)? })+) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        })+
    };
}

said! {
    Ended {
        Succeeded: "succeeded", Failed: "failed for good", Retry: "failed, to be retried",
        Dropped: "dropped", Released: "released by a shutdown",
    }
    Said { Done: "done", Stale: "stale", Unknown: "no answer" }
    Left { Cancelled: "cancelled", Failed: "failed", Expired: "expired", Parked: "parked" }
    Found {
        Succeeded: "succeeded", Failed: "failed", Cancelled: "cancelled", Waiting: "still waiting",
        Parked: "parked", Missing: "not there",
    }
}

//! The format: one event per line, as JSON. `docs/history.md` explains each.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Microseconds since any moment, the same for the whole history.
pub(crate) type Time = i64;

/// The recorder's name for a job, a process or an effect. Numbers are read as text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Name(pub(crate) String);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Event {
    /// Settings of the whole history.
    History {
        version: u32,
        /// How far a time may be from the true one, either way.
        #[serde(default)]
        uncertainty: Time,
        #[serde(default)]
        delayed: Delayed,
        /// Jobs may be claimed while earlier ones run.
        #[serde(default)]
        followers: bool,
    },
    Enqueue {
        job: Name,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        queue: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Name>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<Name>,
        begin: Time,
        /// When the commit was acknowledged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
        outcome: Enqueued,
        /// With the outcome `with`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<Of>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<i64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run_at: Option<Time>,
    },
    Start {
        job: Name,
        attempt: u32,
        process: Name,
        at: Time,
    },
    End {
        job: Name,
        attempt: u32,
        process: Name,
        at: Time,
        outcome: Ended,
    },
    Settle {
        job: Name,
        attempt: u32,
        begin: Time,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
        answer: Said,
    },
    Leave {
        job: Name,
        #[serde(rename = "as")]
        left: Left,
        begin: Time,
        /// `None`: whether it had an effect is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
    },
    Return {
        job: Name,
        begin: Time,
        /// `None`: whether it had an effect is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Time>,
    },
    Gone {
        process: Name,
        begin: Time,
        end: Time,
    },
    Fault {
        what: String,
        begin: Time,
        end: Time,
    },
    Effect {
        job: Name,
        attempt: u32,
        key: Name,
        at: Time,
    },
    Found {
        key: Name,
        count: u64,
    },
    Status {
        job: Name,
        status: Found,
    },
    Drained {
        at: Time,
    },
}

/// What a job that waits for its time or its retry does to the jobs behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Delayed {
    /// It holds them up.
    #[default]
    Hold,
    /// They pass it: jobs with a `run_at` have no place in their group.
    Pass,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Enqueued {
    Committed,
    RolledBack,
    Duplicate,
    Unknown,
    /// In the transaction of an attempt.
    With,
}

/// An attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Of {
    pub(crate) job: Name,
    pub(crate) attempt: u32,
}

/// How a handler ended, by its own report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    Succeeded,
    /// For good: no further attempt.
    Failed,
    Retry,
    /// Told to stop, or dropped: a timeout, a lost claim.
    Dropped,
    /// By a shutdown: the attempt does not count.
    Released,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Done,
    Stale,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Left {
    Cancelled,
    Failed,
    Expired,
    Parked,
}

/// The queue's answer about a job at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Found {
    Succeeded,
    Failed,
    Cancelled,
    Waiting,
    Parked,
    Missing,
}

impl Found {
    pub(crate) fn is_final(self) -> bool {
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

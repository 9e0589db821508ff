//! The words of the format that are one of a few.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::Name;

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

/// The things that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// The groups of each limit key.
    #[default]
    Key,
    /// The jobs of the queue.
    Queue,
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
    /// The queue itself enqueued it.
    Made,
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
    /// It put its job off: that keeps its place, and the attempt does not count.
    Snoozed,
    /// The same, and what it wrote is kept.
    Again,
}

/// How the jobs of a batch must have ended for its follow-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// In any way.
    AllEnded,
    /// With success.
    AllSucceeded,
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
        Snoozed: "put off", Again: "put off, and its effects are kept",
    }
    Said { Done: "done", Stale: "stale", Unknown: "no answer" }
    Left { Cancelled: "cancelled", Failed: "failed", Expired: "expired", Parked: "parked" }
    Found {
        Succeeded: "succeeded", Failed: "failed", Cancelled: "cancelled", Waiting: "still waiting",
        Parked: "parked", Missing: "not there",
    }
}

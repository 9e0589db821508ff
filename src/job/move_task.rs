//! A move task, as an operator sees it.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::explanation::BoundedCount;

/// A task that moves what waits in a queue: a row of the table `move_task`. Prints what it moves,
/// as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MoveTask {
    /// Its number; a later one has a higher one.
    pub id: i64,
    /// The queue that it moves jobs from.
    pub from_queue: String,
    /// The queue that it moves them to; `None`: each to the one that it came from.
    pub to_queue: Option<String>,
    /// The most jobs a second; `None`: as fast as it goes.
    pub per_second: Option<u32>,
    /// Its state.
    pub status: MoveTaskStatus,
    /// The number of jobs that it has moved.
    pub moved: u64,
    /// The number of jobs that waited when it was started.
    pub to_move: BoundedCount,
    /// When it was started.
    pub started_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Why it failed.
    pub failure: Option<String>,
}

impl fmt::Display for MoveTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, verb) = match self.to_move {
            BoundedCount { count: 1, or_more: false } => ("job", "moves"),
            _ => ("jobs", "move"),
        };
        write!(f, "{} {noun} of queue {:?} {verb} ", self.to_move, self.from_queue)?;
        match &self.to_queue {
            Some(to) => write!(f, "to queue {to:?}"),
            None => f.write_str("back to the queue in which each failed"),
        }?;
        match self.per_second {
            Some(rate) => write!(f, ", {rate} a second at most"),
            None => f.write_str(", as fast as it goes"),
        }?;
        f.write_str("; those of a group keep their order, and those in flight stay")
    }
}

/// The state of a move task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MoveTaskStatus {
    /// It moves jobs, whenever maintenance carries it on.
    Running,
    /// Nothing is left to move.
    Completed,
    /// An operator has ended it.
    Cancelled,
    /// Its queue was deleted.
    Failed,
}

impl MoveTaskStatus {
    const ALL: [Self; 4] = [Self::Running, Self::Completed, Self::Cancelled, Self::Failed];

    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

impl fmt::Display for MoveTaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

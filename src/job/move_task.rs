//! A move task, as an operator sees it.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::explanation::BoundedCount;

/// A task that moves what waits in a queue: a row of the table `move_task`.
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

//! A move task, as it is started and as an operator sees it.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::explanation::BoundedCount;

/// A move task to start: what it moves, where to, and how fast.
///
/// ```
/// use seriatim::admin::NewMoveTask;
///
/// let task = NewMoveTask::new("ordres").to("orders").per_second(50);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NewMoveTask {
    /// The queue to move jobs from. In JSON: `queue`.
    #[serde(rename = "queue")]
    pub from_queue: String,
    /// The queue to move all that waits to; `None`: dead letters go back, each to the queue in
    /// which it failed. In JSON: `to`.
    #[serde(rename = "to")]
    pub to_queue: Option<String>,
    /// The group whose jobs alone are moved; `None`: all groups, and jobs without one.
    pub group: Option<String>,
    /// The number of jobs after which the task ends, 1 to 2,147,483,647; `None`: when nothing is
    /// left to move.
    pub limit: Option<u32>,
    /// The most jobs a second over the whole fleet, 1 to 2,147,483,647; `None`: as fast as it goes.
    pub per_second: Option<u32>,
}

impl NewMoveTask {
    /// A task that moves the dead letters which wait in a queue back to the queues in which they
    /// failed, as fast as it goes.
    pub fn new(from_queue: impl Into<String>) -> Self {
        Self {
            from_queue: from_queue.into(),
            to_queue: None,
            group: None,
            limit: None,
            per_second: None,
        }
    }

    /// Moves all that waits, to this queue.
    #[must_use]
    pub fn to(mut self, queue: impl Into<String>) -> Self {
        self.to_queue = Some(queue.into());
        self
    }

    /// Moves the jobs of one group alone. By default it moves those of all groups, and jobs without
    /// one.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Ends the task after so many jobs, 1 to 2,147,483,647. By default it ends when nothing is
    /// left to move.
    #[must_use]
    pub fn limit(mut self, jobs: u32) -> Self {
        self.limit = Some(jobs);
        self
    }

    /// Sets the most jobs a second over the whole fleet, 1 to 2,147,483,647.
    #[must_use]
    pub fn per_second(mut self, jobs: u32) -> Self {
        self.per_second = Some(jobs);
        self
    }
}

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
    /// The group whose jobs alone it moves; `None`: all groups, and jobs without one.
    pub group: Option<String>,
    /// The number of jobs after which it ends; `None`: when nothing is left to move.
    pub limit: Option<u32>,
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
        write!(f, "{} {noun} of ", self.to_move)?;
        if let Some(group) = &self.group {
            write!(f, "group {group:?} of ")?;
        }
        write!(f, "queue {:?} {verb} ", self.from_queue)?;
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

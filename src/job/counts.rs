//! The state of queues and groups for an operator: counts, pauses, halts, parked jobs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::json::seconds;
use crate::job::queue_options::AfterHalt;

/// The numbers of a queue's jobs by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Queued and due, behind others of their group perhaps.
    pub queued: u64,
    /// Queued and not due yet: delayed, or waiting for a retry.
    pub delayed: u64,
    /// Claimed by a worker.
    pub started: u64,
    /// Succeeded and kept, counted up to [`QueueCounts::FINISHED_LIMIT`].
    pub succeeded: u64,
    /// Failed (dead letters) and kept, counted up to [`QueueCounts::FINISHED_LIMIT`].
    pub failed: u64,
    /// Cancelled and kept, counted up to [`QueueCounts::FINISHED_LIMIT`].
    pub cancelled: u64,
    /// Parked behind a job that failed, counted up to [`QueueCounts::FINISHED_LIMIT`].
    pub parked: u64,
}

impl QueueCounts {
    /// Bounds the count of finished and parked jobs: a count that reaches it means "or more". So a
    /// long history costs the call nothing. Unfinished jobs are counted exactly.
    pub const FINISHED_LIMIT: u64 = 10_000;

    /// Returns the number of unfinished jobs.
    pub fn unfinished(&self) -> u64 {
        self.queued + self.delayed + self.started
    }
}

/// A queue that is paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PausedQueue {
    /// The queue.
    pub queue: String,
    /// Since when, by the database's clock.
    pub since: DateTime<Utc>,
    /// For how long, by the database's clock. In JSON: seconds.
    #[serde(serialize_with = "seconds")]
    pub age: Duration,
    /// The reason that was given.
    pub reason: Option<String>,
    /// When it ends by itself; `None`: only an operator ends it.
    pub until: Option<DateTime<Utc>>,
    /// The job that asked for it as a [rest](crate::ActiveJob::rest_group); `None`: an operator
    /// paused it.
    pub rested_by: Option<i64>,
}

/// A group that is paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PausedGroup {
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// Since when, by the database's clock.
    pub since: DateTime<Utc>,
    /// For how long, by the database's clock. In JSON: seconds.
    #[serde(serialize_with = "seconds")]
    pub age: Duration,
    /// The reason that was given.
    pub reason: Option<String>,
    /// When it ends by itself; `None`: only an operator ends it.
    pub until: Option<DateTime<Utc>>,
    /// The job that asked for it as a [rest](crate::ActiveJob::rest_group); `None`: an operator
    /// paused it.
    pub rested_by: Option<i64>,
}

/// A halted group, and why it stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HaltedGroup {
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// Since when, by the database's clock.
    pub since: DateTime<Utc>,
    /// For how long, by the database's clock. In JSON: seconds.
    #[serde(serialize_with = "seconds")]
    pub age: Duration,
    /// The message of the failure that halted it.
    pub reason: Option<String>,
    /// The job that halted it.
    pub job: Option<i64>,
    /// The deadline of the halt; `None`: only an operator ends it.
    pub until: Option<DateTime<Utc>>,
    /// The action at the deadline.
    pub then: Option<AfterHalt>,
}

/// A failed job, and the jobs of its group that stepped aside with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParkedUnit {
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// The job that failed.
    pub job: i64,
    /// When it failed, by the database's clock.
    pub since: Option<DateTime<Utc>>,
    /// The message of its failure.
    pub reason: Option<String>,
    /// The number of jobs that are parked with it.
    pub parked: u64,
}

//! A list of dead letters: what it shows of each, and which it has.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::job::Failure;

/// A dead letter, without what it carries: a job that failed for good and is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailedJob {
    /// Its id.
    pub id: i64,
    /// The queue that it failed in.
    pub queue: String,
    /// The dead-letter queue that it waits in; `None`: it stayed.
    pub dead_letter_queue: Option<String>,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// What kind of job it is.
    pub name: Option<String>,
    /// The producer's own id.
    pub reference: Option<String>,
    /// How often it has begun.
    pub attempts: u32,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it failed for good; of one that waits in a dead-letter queue: when it failed last.
    pub finished_at: Option<DateTime<Utc>>,
    /// Its last failure.
    pub error: Option<Failure>,
    /// Whether others are parked with it: then they are redriven together.
    pub parked: bool,
}

/// Which dead letters [`Client::failed_jobs`](crate::Client::failed_jobs) lists. All that is given
/// must be true of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedFilter {
    /// That failed in this queue, wherever they wait.
    pub queue: Option<String>,
    /// Of this group.
    pub group: Option<String>,
    /// Of this name ([`NewJob::name`](crate::NewJob::name)).
    pub name: Option<String>,
    /// Failed at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// Whose failure's message has this text in it, whatever its case.
    pub error: Option<String>,
    /// Behind this job: the last one of the page before.
    pub after: Option<i64>,
    /// At most so many. Default 100.
    pub limit: u32,
}

impl Default for FailedFilter {
    fn default() -> Self {
        Self {
            queue: None,
            group: None,
            name: None,
            since: None,
            error: None,
            after: None,
            limit: 100,
        }
    }
}

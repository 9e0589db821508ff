//! Which dead letters a list has.

use chrono::{DateTime, Utc};

/// Which dead letters [`Client::failed_jobs`](crate::Client::failed_jobs) lists. All that is given
/// must be true of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedFilter {
    /// Of this queue.
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

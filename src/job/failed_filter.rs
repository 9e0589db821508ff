//! A list of dead letters: its rows and its filter.

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
    /// The kind of job ([`NewJob::name`](crate::NewJob::name)).
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

/// A filter of the dead letters that [`Client::failed_jobs`](crate::Client::failed_jobs) lists. A
/// job must match all fields that are given. The methods set them one by one.
///
/// ```
/// use seriatim::admin::FailedFilter;
///
/// let filter = FailedFilter::default().queue("postings").error("timed out").limit(20);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedFilter {
    /// Jobs that failed in this queue, wherever they wait.
    pub queue: Option<String>,
    /// Jobs of this group.
    pub group: Option<String>,
    /// Jobs of this name ([`NewJob::name`](crate::NewJob::name)).
    pub name: Option<String>,
    /// Jobs that failed at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// Jobs whose failure's message contains this text, in upper or lower case.
    pub error: Option<String>,
    /// Jobs behind this one: the last one of the page before.
    pub after: Option<i64>,
    /// Maximum number of jobs. Default 100.
    pub limit: u32,
}

impl FailedFilter {
    /// Lists only jobs that failed in this queue, wherever they wait.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Lists only jobs of this group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Lists only jobs of this name ([`NewJob::name`](crate::NewJob::name)).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Lists only jobs that failed at this time or later.
    #[must_use]
    pub fn since(mut self, time: DateTime<Utc>) -> Self {
        self.since = Some(time);
        self
    }

    /// Lists only jobs whose failure's message contains this text, in upper or lower case.
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Lists only jobs after this one: the last job of the previous page.
    #[must_use]
    pub fn after(mut self, job: i64) -> Self {
        self.after = Some(job);
        self
    }

    /// Lists at most this many jobs. The default is 100.
    #[must_use]
    pub fn limit(mut self, jobs: u32) -> Self {
        self.limit = jobs;
        self
    }
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

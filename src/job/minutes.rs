//! The last hour of queues, minute by minute, as the collector of metrics has counted it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

/// The last hour of some queues, minute by minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LastHour {
    /// The begins of the minutes that were counted, the oldest first: 60 at most. A minute that is
    /// missing was not counted: nobody collected [`Metrics`](crate::observe::Metrics) since.
    pub counted: Vec<DateTime<Utc>>,
    /// The minutes of each queue in which jobs ended, the oldest first. In a minute that was
    /// counted, and is not here, none did.
    pub queues: BTreeMap<String, Vec<QueueMinute>>,
}

/// The jobs of a queue that ended in a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueMinute {
    /// When the minute began, by the database's clock.
    pub minute: DateTime<Utc>,
    /// The jobs that succeeded, or failed for good. Over [`LIMIT`](Self::LIMIT) means "or more".
    pub ended: u64,
    /// The jobs of these that failed for good.
    pub failed: u64,
    /// How long half of the jobs that succeeded had waited, at most, from when they were due until
    /// their last attempt began, in milliseconds; `None`: none succeeded.
    pub wait_median_ms: Option<u64>,
    /// The same of 19 in 20 jobs.
    pub wait_p95_ms: Option<u64>,
}

impl QueueMinute {
    /// Bounds the count of successes, and that of failures.
    pub const LIMIT: u64 = 100_000;
}

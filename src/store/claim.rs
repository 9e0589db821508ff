//! A claim: a job that is this worker's for as long as its token stands, and the options by which
//! it is claimed.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::job::disposition::Disposition;
use crate::job::queue_options::{Hold, QueueOptions};

/// How long a claim is good for before its hold must stand.
pub(crate) const CLAIM_LEASE: Duration = Duration::from_millis(500);

/// The largest number of jobs that one claim starts, and of followers. Slots wait for it, and its
/// cost grows with both.
pub(crate) const CLAIM_LIMIT: usize = 500;

/// The most data that one claim brings, in bytes as stored, unless a single job has more. A slow
/// link must bring it well before the claim times out.
pub(crate) const CLAIM_BYTES: u64 = 4 << 20;

/// A claimed job: this worker's for as long as its token stands.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) job: i64,
    /// Jobs of its group that were claimed together with it, to be run after it, in order.
    pub(crate) followers: Vec<i64>,
    /// `None` for a job without a group.
    pub(crate) group: Option<String>,
    pub(crate) token: Uuid,
    pub(crate) disposition: Disposition,
    /// Whether it may be prefetched: it was never begun, has further attempts and does not expire.
    pub(crate) may_wait: bool,
    /// When the handler of `job` began in this process; `None` before.
    pub(crate) began: Option<Instant>,
}

impl Claim {
    /// Advances to the next job of the turn; returns whether there is one.
    pub(crate) fn advance(&mut self) -> bool {
        let more = !self.followers.is_empty();
        if more {
            self.job = self.followers.remove(0);
            self.began = None;
        }
        more
    }

    /// Returns how many seconds ago the handler of `job` began: the claim of a follower is older.
    pub(crate) fn age(&self) -> Option<f64> {
        self.began.map(|began| began.elapsed().as_secs_f64())
    }
}

/// The options by which a queue's jobs are claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimOptions {
    /// The limit of attempts for jobs that name none.
    pub(crate) max_attempts: i32,
    /// How many jobs of a group are claimed together at most.
    pub(crate) jobs_per_turn: usize,
    /// How long a claim is good for, unless it is extended.
    pub(crate) lease: Duration,
    /// Whether a job's own lease comes first: if leases, and not locks, keep the jobs.
    pub(crate) own_lease: bool,
    /// The processor that owns the claims.
    pub(crate) processor: Option<i64>,
    /// Jobs that were enqueued before are not run.
    pub(crate) ignore_before: Option<DateTime<Utc>>,
}

impl ClaimOptions {
    pub(crate) fn new(options: &QueueOptions, processor: Option<i64>) -> Self {
        let (lease, own_lease) = match options.hold {
            Hold::Transaction => (CLAIM_LEASE, false),
            Hold::Lease(lease) => (lease, true),
        };
        let max_attempts = i32::try_from(options.retry.max_attempts).unwrap_or(i32::MAX);
        let ignore_before = options.ignore_before;
        Self { max_attempts, jobs_per_turn: 1, lease, own_lease, processor, ignore_before }
    }
}

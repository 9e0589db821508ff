//! Why a job or a group is where it is, as a value; `sentence` puts it into words. Pure.

use std::fmt;
use std::iter::Sum;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::attempt::AttemptInfo;
use crate::job::job::JobStatus;
use crate::job::progress::Progress;
use crate::job::rate::Rate;

/// Why a job is where it is; prints as a few sentences, with the [`advice`](Self::advice) at the
/// end.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobExplanation {
    /// The job.
    pub job: i64,
    /// Its queue.
    pub queue: String,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Its state.
    pub status: JobStatus,
    /// Its activity, or its reason to wait.
    pub reason: Reason,
    /// The batch that it is of ([`Client::batch`](crate::Client::batch)).
    pub batch: Option<i64>,
    /// How often an enqueue with its unique key replaced its data
    /// ([`Unique::replace`](crate::Unique::replace)).
    pub replaced: u32,
    /// When one did so last.
    pub replaced_at: Option<DateTime<Utc>>,
    /// The number of unfinished jobs behind it in its group.
    pub behind: BoundedCount,
    /// Since when a request to cancel it is pending; its handler has been told.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// No living processor or receiver serves its queue.
    pub unserved: Option<Unserved>,
    /// The server is a standby, which has what the primary wrote until then. It does not know which
    /// session of the primary has a row.
    pub standby_at: Option<DateTime<Utc>>,
}

/// Why a group is where it is; prints as a few sentences, with the [`advice`](Self::advice) at the
/// end.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupExplanation {
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// The job that runs or is next; `None`: the group has no unfinished job.
    pub head: Option<i64>,
    /// The activity of the job that runs or is next, or its reason to wait.
    pub reason: Reason,
    /// The number of unfinished jobs behind it.
    pub behind: BoundedCount,
    /// Since when a request to cancel the job that runs or is next is pending.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// No living processor or receiver serves the queue.
    pub unserved: Option<Unserved>,
    /// Jobs of the group that stepped aside with one that failed.
    pub parked: Option<ParkedJobs>,
    /// The server is a standby, which has what the primary wrote until then. It does not know which
    /// session of the primary has a row.
    pub standby_at: Option<DateTime<Utc>>,
}

/// No living processor or receiver serves a queue: perhaps its name is mistyped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unserved {
    /// The queues that are served, by name, 20 at most.
    pub served: Vec<String>,
}

/// Jobs of a group that stepped aside with one that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParkedJobs {
    /// Their number, without those that failed.
    pub jobs: BoundedCount,
    /// When the first of those failed.
    pub since: Option<DateTime<Utc>>,
}

/// A number that was counted up to [`BoundedCount::LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct BoundedCount {
    /// The number, or the least that it can be.
    pub count: u64,
    /// There are more than were counted.
    pub or_more: bool,
}

impl Sum for BoundedCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, count| Self {
            count: sum.count + count.count,
            or_more: sum.or_more || count.or_more,
        })
    }
}

/// The processor that claimed a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessorInfo {
    /// Its id.
    pub id: i64,
    /// The name of its node.
    pub node: String,
    /// Its host.
    pub host: Option<String>,
    /// Its process id there.
    pub pid: Option<i32>,
    /// Whether it shows that it lives: by a lock, or on a standby by [`seen_at`](Self::seen_at).
    pub alive: bool,
    /// Whether it lives and was not seen for 30 s: it is frozen, or cannot write. It enforces no
    /// timeout then. Maintenance of another process ends its runs 30 s after their timeouts.
    pub silent: bool,
    /// The queues that it serves; `None`: it is of a version that does not say.
    pub queues: Option<Vec<String>>,
    /// When it started.
    pub started_at: Option<DateTime<Utc>>,
    /// When it last said that it lives, which it does every 10 s.
    pub seen_at: Option<DateTime<Utc>>,
}

impl ProcessorInfo {
    /// Returns `alive`, `silent` or `gone`.
    pub fn state(&self) -> &'static str {
        match (self.alive, self.silent) {
            (false, _) => "gone",
            (true, true) => "silent",
            (true, false) => "alive",
        }
    }
}

/// The database session that holds a running job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its process id in the server.
    pub pid: i32,
    /// The name of its program, as that says it.
    pub application: Option<String>,
    /// Its state (`active`, `idle in transaction`, …), if the role may see it.
    pub state: Option<String>,
    /// The current or last query, if the role may see it.
    pub query: Option<String>,
    /// When that query began.
    pub query_start: Option<DateTime<Utc>>,
    /// The address of the client; `None`: a local socket.
    pub client_address: Option<String>,
    /// When it was opened.
    pub since: Option<DateTime<Utc>>,
    /// When its transaction began, if the role may see it.
    pub transaction_start: Option<DateTime<Utc>>,
    /// The sessions whose locks it waits for, by their process ids in the server.
    pub blocked_by: Vec<i32>,
}

/// The row that another transaction has, of [`Reason::Locked`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockedRow {
    /// The job's own row, or its group's.
    Job,
    /// The row of the queue: with `in_flight_limit` or `rate`, claims count there.
    Queue,
    /// Its limit key, or what has the same hash: with `limit_per_key`, claims count there.
    LimitKey,
}

/// The activity of a job or of a group's head, or its reason to wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Its handler runs, in a transaction that holds it.
    Running {
        /// The attempt.
        attempt: AttemptInfo,
        /// For how long, in seconds.
        seconds: f64,
        /// The processor that claimed it, if that is known.
        processor: Option<ProcessorInfo>,
        /// The session that has the lock.
        session: SessionInfo,
        /// When its timeout ends it, if a processor says so.
        timeout_at: Option<DateTime<Utc>>,
        /// How far it is, if this attempt has reported it.
        progress: Option<Progress>,
    },
    /// It is due, but a transaction that has nothing to do with a run of it has a row that its
    /// claim needs.
    Locked {
        /// The row.
        row: LockedRow,
        /// For how long that transaction has been open, in seconds; 0 if the role may not see when
        /// it began.
        seconds: f64,
        /// Its session.
        session: SessionInfo,
    },
    /// A worker or a receiver claimed it and no session holds it: its lease or visibility does, or
    /// its handler is about to begin.
    Claimed {
        /// The attempt.
        attempt: AttemptInfo,
        /// For how long, in seconds.
        seconds: f64,
        /// The processor that claimed it, if that is known; `None` for a job that was received by
        /// hand.
        processor: Option<ProcessorInfo>,
        /// When the lease, or the visibility, ends unless it is extended.
        lease_until: DateTime<Utc>,
        /// When its timeout ends it, if a processor says so.
        timeout_at: Option<DateTime<Utc>>,
        /// How far it is, if this attempt has reported it.
        progress: Option<Progress>,
    },
    /// Its worker seems lost: the claim is suspected.
    Suspected {
        /// The attempt.
        attempt: AttemptInfo,
        /// The processor that claimed it, if that is known.
        processor: Option<ProcessorInfo>,
        /// When another worker takes it over, unless the suspicion is cleared.
        taken_over_at: DateTime<Utc>,
    },
    /// Its lease or its visibility is over, or it could have been taken over by now, and nobody has
    /// taken it over.
    Lapsed {
        /// The attempt.
        attempt: AttemptInfo,
        /// The processor that claimed it, if that is known; `None` for a job that was received by
        /// hand.
        processor: Option<ProcessorInfo>,
        /// Since when.
        since: DateTime<Utc>,
        /// For how many seconds.
        seconds: f64,
        /// Its queue is paused, so that no worker claims from it.
        queue_paused: bool,
    },
    /// Another job of its group comes first.
    Behind {
        /// The job that comes first.
        head: i64,
        /// The activity of that job, or its reason to wait.
        why: Box<Reason>,
    },
    /// It is not due: delayed, put off by its handler, or waiting for a retry.
    NotDue {
        /// When it will be due.
        until: DateTime<Utc>,
        /// In how many seconds.
        seconds: f64,
        /// The attempts so far.
        attempt: AttemptInfo,
        /// How often it was put off, if its last attempt did so; else 0.
        snoozes: u32,
        /// The message of the last failure.
        last_error: Option<String>,
    },
    /// Its group is halted.
    Halted {
        /// Since when.
        since: DateTime<Utc>,
        /// For how many seconds.
        seconds: f64,
        /// The message of the failure.
        why: Option<String>,
        /// The job that failed.
        by: Option<i64>,
        /// The deadline of the halt; `None`: only an operator ends it.
        until: Option<DateTime<Utc>>,
    },
    /// The jobs of its group are stepping aside behind one that failed.
    Parking {
        /// The job that failed.
        by: Option<i64>,
    },
    /// Its group is paused, or rests.
    GroupPaused {
        /// Since when.
        since: DateTime<Utc>,
        /// The reason that was given.
        why: Option<String>,
        /// When it ends by itself; `None`: only an operator ends it.
        until: Option<DateTime<Utc>>,
        /// In how many seconds that is.
        seconds_left: Option<f64>,
        /// The job that asked for it as a [rest](crate::ActiveJob::rest_group); `None`: an operator
        /// paused it.
        rested_by: Option<i64>,
    },
    /// Its queue is paused, or rests.
    QueuePaused {
        /// Since when.
        since: DateTime<Utc>,
        /// The reason that was given.
        why: Option<String>,
        /// When it ends by itself; `None`: only an operator ends it.
        until: Option<DateTime<Utc>>,
        /// In how many seconds that is.
        seconds_left: Option<f64>,
        /// The job that asked for it as a [rest](crate::ActiveJob::rest_group); `None`: an operator
        /// paused it.
        rested_by: Option<i64>,
    },
    /// The limit of jobs in flight of its queue is reached.
    AtLimit {
        /// The number of jobs in flight.
        in_flight: u64,
        /// The limit.
        limit: u64,
    },
    /// As many groups with its limit key run as may: its group sleeps until one of these ends.
    AtKeyLimit {
        /// The limit key.
        key: String,
        /// How many groups run with it.
        taken: u64,
        /// How many may run: the key's own limit, or the queue's; 0: the key is paused.
        /// `None`: the limit is being removed.
        limit: Option<u32>,
        /// Since when, in seconds.
        seconds: f64,
        /// The number of groups that get a slot of the key before it.
        before: BoundedCount,
    },
    /// The rate of its queue allows no start now.
    AtRate {
        /// The rate.
        rate: Rate,
        /// When it allows one.
        until: DateTime<Utc>,
    },
    /// A job of its group has just started, and its queue spaces the starts of a group.
    Spaced {
        /// When the next one may start.
        until: DateTime<Utc>,
    },
    /// It is due, and waits for its turn: no worker has claimed it yet.
    WaitsForTurn {
        /// Since when, in seconds.
        seconds: f64,
        /// The number of groups (or jobs without one) of its queue that are ready before it.
        before: BoundedCount,
    },
    /// It is due and flagged, and no worker has adopted its group yet.
    NotAdopted {
        /// Since when, in seconds.
        seconds: f64,
    },
    /// Nothing would wake it, because tables were written by hand. The sweep will find it.
    Stranded,
    /// It expired before it began, and ends without a run when its turn comes.
    Expired {
        /// When.
        at: DateTime<Utc>,
    },
    /// It failed for good in another queue, and waits in that one's dead-letter queue, which no
    /// processor serves, until it is redriven or discarded.
    DeadLetter {
        /// The queue that it failed in.
        failed_in: String,
        /// The dead-letter queue.
        waits_in: String,
        /// For how long, in seconds.
        seconds: f64,
    },
    /// It stepped aside with a job that failed, until it is redriven or discarded.
    Parked {
        /// The job that failed.
        with: Option<i64>,
    },
    /// It has ended.
    Ended {
        /// The state that it ended in.
        status: JobStatus,
        /// When.
        at: Option<DateTime<Utc>>,
        /// Why, if it did not succeed.
        error: Option<String>,
        /// Whether later jobs of its group are parked with it.
        parked: bool,
        /// Whether its group is halted by it.
        halts: bool,
    },
    /// The group has no unfinished job.
    Nothing,
}

impl BoundedCount {
    /// Bounds what is counted.
    pub const LIMIT: u64 = 10_000;

    /// Returns the number for a count that stops at one more than the limit.
    pub(crate) fn new(count: u64) -> Self {
        Self::up_to(count, Self::LIMIT)
    }

    /// Returns the number for a count that stops at one more than another limit.
    pub(crate) fn up_to(count: u64, limit: u64) -> Self {
        Self { count: count.min(limit), or_more: count > limit }
    }
}

impl fmt::Display for BoundedCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, if self.or_more { " or more" } else { "" })
    }
}

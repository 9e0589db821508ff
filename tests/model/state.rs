//! State of the model: rows, the step of each actor, and a record for the properties.

use crate::database::{Locks, Transaction};

pub const JOBS: usize = 3;
pub const WORKERS: usize = 3;
/// Sessions: one for each worker, whatever it does in the database, and these two.
pub const OPERATOR: usize = WORKERS;
pub const MAINTENANCE: usize = WORKERS + 1;
pub const SESSIONS: usize = WORKERS + 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waits, or runs: whether a job is claimed is in its group's row alone.
    Queued,
    Succeeded,
    Failed,
    Cancelled,
    Parked,
    /// In another queue: nothing here is to see it.
    Moved,
}

impl Status {
    pub fn unfinished(self) -> bool {
        self == Self::Queued
    }
}

/// A row of `job`. Its place in the array is its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobRow {
    pub status: Status,
    pub flagged: bool,
    /// `run_at` is over.
    pub due: bool,
    /// Attempts that have ended. One that runs is in the group's row.
    pub attempts: u8,
    pub forgiven: u8,
    pub parked_with: Option<u8>,
}

impl JobRow {
    pub fn counted(self) -> u8 {
        self.attempts - self.forgiven
    }

    /// Returns the row as the end of an attempt leaves it; `begun`: that counts. The flag goes: its
    /// claim has the group's row, whose `head_id` is not above the job.
    pub fn ended(self, status: Status, begun: bool) -> Self {
        let attempts = self.attempts + u8::from(begun);
        Self { status, flagged: false, attempts, ..self }
    }

    /// Ended for good, as far as anything but a request is concerned.
    pub fn is_over(self) -> bool {
        !self.status.unfinished() && self.status != Status::Parked
    }

    /// Returns whether a page of flags has its flag: a group that waits for its time needs no row
    /// until then.
    pub fn is_adoptable(self) -> bool {
        self.flagged && (self.due || self.is_over())
    }
}

/// Meaning of `ready_at`: a time that is over, or the kind of time that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ready {
    Due,
    Lease,
    /// After a suspicion: by the failure detector, or by a claim that met a lease that was over.
    Grace {
        by_detector: bool,
    },
    /// Until the server has been up for so long that every living process has come back.
    AfterRestart,
    /// Until the job's `run_at`.
    Sleep(u8),
    /// Halted.
    Never,
}

/// The row of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupRow {
    /// The token.
    pub claim: Option<u8>,
    pub job: Option<u8>,
    /// The claim has begun an attempt, which its job's row counts when it has ended.
    pub started: bool,
    pub suspect: Option<u8>,
    pub claimed_by: Option<u8>,
    /// The claim is over when its lease is.
    pub strict: bool,
    pub head: u8,
    pub ready: Ready,
    pub halted_by: Option<u8>,
    pub park_to: Option<u8>,
}

impl GroupRow {
    /// Returns whether the job is claimed.
    pub fn names(&self, job: u8) -> bool {
        self.job == Some(job)
    }

    /// Returns whether its claim is strict, and over.
    pub fn is_over(&self) -> bool {
        self.strict && self.ready != Ready::Lease
    }
}

/// The tables, as one snapshot shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rows {
    pub jobs: [Option<JobRow>; JOBS],
    pub group: Option<GroupRow>,
    /// Requests to cancel, a bit for each job.
    pub asked: u8,
    /// The server's start on which each process announced its presence.
    pub processors: [u8; WORKERS],
}

impl Rows {
    pub fn status(&self, job: u8) -> Option<Status> {
        self.jobs[job as usize].map(|row| row.status)
    }

    /// Returns the jobs for which `is` holds, a bit for each.
    pub fn which(&self, is: impl Fn(u8, &JobRow) -> bool) -> u8 {
        // A loop: without optimisation it is the fastest.
        let mut found = 0;
        for id in 0..JOBS {
            if let Some(row) = &self.jobs[id]
                && is(id as u8, row)
            {
                found |= 1 << id;
            }
        }
        found
    }

    pub fn unfinished(&self) -> u8 {
        self.which(|_, row| row.status.unfinished())
    }

    /// Returns whether the group's row names the job: it is claimed.
    pub fn is_claimed(&self, job: u8) -> bool {
        self.group.is_some_and(|row| row.names(job))
    }

    pub fn flagged(&self) -> u8 {
        self.which(|_, row| row.flagged)
    }

    /// Returns the flags that an adopter takes: of jobs that are due, or over.
    pub fn adoptable(&self) -> u8 {
        self.which(|_, row| row.is_adoptable())
    }
}

pub fn lowest(bits: u8) -> Option<u8> {
    (bits != 0).then(|| bits.trailing_zeros() as u8)
}

pub fn each(bits: u8) -> impl Iterator<Item = u8> {
    (0..JOBS as u8).filter(move |id| bits & 1 << id != 0)
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RunResult {
    #[default]
    Success,
    Error,
    Exhausted,
    Cancelled,
}

/// A worker's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    pub token: u8,
    pub job: u8,
    pub attempts: u8,
    pub exhausted: bool,
}

/// Purpose of locking the rows by the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Then {
    /// To run the handler, in that transaction.
    Handle,
    /// The first `tx()` of a handler that a lease keeps.
    Tx,
    /// To record the result of the run.
    Record(RunResult),
    /// To release the claim: no slot has come free for its job.
    Release,
}

/// A worker's step. `See` takes a statement's snapshot, `Lock` is when that statement locks the
/// row; between them the snapshot may age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    Dead,
    Idle,
    // Claim: adopt, by the flags that were seen. None of them is locked.
    WakeLock {
        flags: u8,
        wakes: bool,
    },
    ShareLock {
        flags: u8,
    },
    GroupLock {
        flags: u8,
    },
    GroupSee {
        flags: u8,
    },
    Insert {
        flags: u8,
        head: Option<u8>,
        wrong: bool,
    },
    // Claim: take turns, read heads, write.
    TakeSee,
    TakeLock {
        seen: HeadSnapshot,
    },
    HeadSee {
        seen: HeadSnapshot,
    },
    HeadLock {
        head: u8,
        wrong: bool,
        alone: bool,
    },
    SleepClear {
        head: u8,
    },
    RetireFreeSee,
    RetireFreeLock {
        drained: bool,
    },
    ClaimCommit {
        claim: Option<Claim>,
    },
    // Hold, or settle by token.
    HoldSee {
        then: Then,
    },
    HoldLock {
        then: Then,
        followed: bool,
    },
    ClearSuspicion {
        then: Then,
    },
    ReleaseCommit,
    /// The handler runs, in a transaction that has the rows.
    Held {
        followed: bool,
    },
    /// The handler runs, and its session is gone.
    HoldLost,
    /// The handler runs, and a lease keeps the group.
    Leased,
    // Settle.
    ManySee,
    ManyLock,
    ManyWrite,
    ParkSee {
        followed: bool,
    },
    ParkLock {
        followed: bool,
        behind: u8,
    },
    RetireAlone,
    RetireAtOnce {
        drained: bool,
    },
    Retire,
    SettleCommit,
    // Settle, and chain the group's next job.
    ChainSee {
        followed: bool,
    },
    ChainLock {
        followed: bool,
        next: u8,
        wrong: bool,
    },
    ChainCommit {
        claim: Claim,
    },
}

/// The heads that a snapshot shows of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeadSnapshot {
    /// The candidate with the lowest id.
    pub head: Option<u8>,
    pub drained: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub step: Step,
    pub claim: Option<Claim>,
    /// Its handler runs.
    pub handler: bool,
    /// The result to record again if the session is lost in a settle.
    pub unrecorded: RunResult,
    /// Its presence session lives, and so does the lock.
    pub present: bool,
    /// The server itself announced its shutdown, and the process has not been back since.
    pub knows_down: bool,
    /// The process whose row it has locked as the failure detector, with the lock found free.
    pub found_dead: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    Waiting,
    /// Inserted, not committed.
    Open {
        first: u8,
    },
    Done,
}

/// A step of a request. `End` is a cancel or a skip, which leave the job with that status. `Open`:
/// it has done all, and its transaction stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorStep {
    Idle,
    EndLock { job: u8, status: Status },
    EndLook { job: u8, status: Status },
    RetryLock { dead: u8, halted: bool },
    RetryUnhalt { dead: u8 },
    UnitLock { unit: u8 },
    MoveLock { job: u8 },
    MoveLook { job: u8 },
    MoveSee { job: u8 },
    MoveNext { job: u8, next: Option<u8> },
    MoveAway { job: u8, next: Option<u8> },
    Open,
}

/// Maintenance parks jobs, or carries out a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MaintenanceStep {
    Idle,
    ParkSee,
    ParkLock { behind: u8 },
    RequestLock { job: u8 },
    RequestLook { job: u8 },
}

/// Number of faults that may still occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Faults {
    /// Workers that die.
    pub crashes: u8,
    /// Sessions that die while their workers live; also those of presences.
    pub sessions: u8,
    /// Restarts of the server.
    pub restarts: u8,
    /// Crashes of one of the server's processes: all sessions end, its start time stays.
    pub recoveries: u8,
    /// Presence sessions that are terminated, with the same words as a shutdown.
    pub terminations: u8,
    /// Promotions of a standby, with a new timeline.
    pub promotions: u8,
    /// Leases of living workers that are not extended in time.
    pub lapses: u8,
    /// Holds of a chained job that fail though the commit before them got through.
    pub holds: u8,
}

/// Record for the properties alone; not in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(clippy::struct_excessive_bools)] // What was seen and what was not.
pub struct Seen {
    /// For each job, those that must have ended before it starts: they were committed when it was
    /// enqueued.
    pub before: [u8; JOBS],
    /// Number of times that each job's handler was begun.
    pub starts: [u8; JOBS],
    pub wrong_head: bool,
    /// A handler was begun without a committed attempt, or an attempt was counted that did not end.
    pub uncounted: bool,
    pub stale_write: bool,
    /// A claim of this queue started a job that was moved to another one.
    pub ran_moved: bool,
    /// A strict claim was settled or extended when it was over.
    pub late_write: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// As committed.
    pub rows: Rows,
    pub transactions: [Transaction; SESSIONS],
    pub locks: Locks,
    pub producers: [Producer; JOBS],
    pub next_id: u8,
    pub workers: [Worker; WORKERS],
    pub operator: OperatorStep,
    /// The group had two rows.
    pub two_rows: bool,
    /// A step waited for an open transaction.
    pub waited: bool,
    /// The configuration's requests that were made, a bit for each.
    pub requested: u8,
    pub maintenance: MaintenanceStep,
    /// Number of starts of the server.
    pub start: u8,
    /// The server has been up for so long that every process has come back to it, or given up.
    pub all_back: bool,
    /// A token that was suspected before the server started.
    pub old_suspect: Option<u8>,
    pub faults: Faults,
    pub seen: Seen,
}

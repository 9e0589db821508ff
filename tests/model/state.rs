//! State of the model: rows, the actors (see `step`), and a record for the properties.

use crate::database::{Locks, Transaction};
pub use crate::step::{
    Claim, HeadSnapshot, MaintenanceStep, OperatorStep, Producer, RunResult, Step, Then, Worker,
};

pub const JOBS: usize = 3;
pub const WORKERS: usize = 3;
/// Sessions: one for each worker, whatever it does in the database, and these two.
pub const OPERATOR: usize = WORKERS;
pub const MAINTENANCE: usize = WORKERS + 1;
pub const SESSIONS: usize = WORKERS + 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Status {
    #[default]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JobRow {
    pub status: Status,
    pub flagged: bool,
    /// `run_at` is over.
    pub due: bool,
    /// Attempts that have ended. One that runs is in the group's row.
    pub attempts: u8,
    pub forgiven: u8,
    /// How often it was put off.
    pub snoozes: u8,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Ready {
    #[default]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupRow {
    /// The token.
    pub claim: Option<u8>,
    /// The jobs of the claim's turn, a bit for each, until it ends. They run in order.
    pub jobs: u8,
    /// The claim has begun an attempt, which the row of its first job counts when it has ended.
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
        self.jobs & 1 << job != 0
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

    /// Returns the first job of the claim that has not ended: it runs, or is next.
    pub fn current(&self) -> Option<u8> {
        lowest(self.group?.jobs & self.unfinished())
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
    /// Holds of a turn's next job that fail though the commit before them got through.
    pub holds: u8,
}

/// Record for the properties alone; not in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(clippy::struct_excessive_bools)] // Each records one thing.
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

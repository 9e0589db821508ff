//! State: the batch's row, its jobs, what is due, and each look with what it has not committed.

pub const JOBS: usize = 3;
pub const LOOKS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum JobState {
    /// It never joined, or its transaction has rolled back.
    #[default]
    Gone,
    /// Its transaction has not begun.
    Waits,
    /// Its transaction has read that the batch is not sealed.
    Read,
    /// Its transaction has locked the batch, and is open.
    Joined,
    Unfinished,
    /// The transaction of its end is open.
    Ending {
        succeeds: bool,
        /// For a mutation: it has found no other job unfinished.
        last: bool,
    },
    Ended {
        succeeded: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Job {
    pub state: JobState,
    /// Its row of `batch_end` has a success; none: there is no row.
    pub end: Option<bool>,
    /// It was retried when the batch had ended.
    pub again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Seal {
    #[default]
    No,
    Open,
    Sealed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Step {
    #[default]
    Idle,
    /// Locks the batch's row.
    Lock,
    /// Deletes what was due, and keeps a row for a batch that it could not lock.
    Delete,
    /// Reads jobs, and enqueues the follow-up if they have ended.
    Jobs,
    Commit,
}

/// The answer of a look at jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Read {
    pub unfinished: bool,
    pub unsuccessful: bool,
}

/// A look: the transaction of `end_batches`. `due` is a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Look {
    pub step: Step,
    pub due: u8,
    pub has_batch: bool,
    /// It keeps a row of what is due.
    pub keeps: bool,
    /// It has enqueued the follow-up.
    pub ends: bool,
    /// It has noted whether the batch has failed.
    pub fails: Option<bool>,
    /// For a mutation.
    pub read: Option<Read>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(clippy::struct_excessive_bools)] // Each says one thing.
pub struct State {
    pub jobs: [Job; JOBS],
    pub seal: Seal,
    pub ended: bool,
    pub failed: bool,
    pub follow_ups: u8,
    /// Rows of `batch_due`, a bit for each.
    pub due: u8,
    pub looks: [Look; LOOKS],
    pub retries: u8,
    /// A follow-up was started though a job had not succeeded.
    pub early: bool,
    /// A step waited for an open transaction.
    pub waited: bool,
}

impl State {
    /// Appends rows of what is due. Only a mutation makes more than eight; these are as eight.
    pub fn append(&mut self, count: u8) {
        for _ in 0..count {
            self.due |= self.due.wrapping_add(1);
        }
    }

    pub fn is_joined(&self) -> bool {
        self.jobs.iter().any(|job| job.state == JobState::Joined)
    }

    /// Reads the committed jobs.
    pub fn read_jobs(&self) -> Read {
        let unfinished =
            |job: &Job| matches!(job.state, JobState::Unfinished | JobState::Ending { .. });
        Read {
            unfinished: self.jobs.iter().any(unfinished),
            unsuccessful: self.jobs.iter().any(|job| job.end == Some(false)),
        }
    }
}

//! State: rows and flags as committed, and each session's claim with what it has not committed.

use std::array;

pub const GROUPS: usize = 3;
pub const JOBS: usize = 4;
pub const SESSIONS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JobState {
    /// Not committed.
    Open,
    Flagged,
    /// Unfinished, its flag cleared.
    Queued,
    #[default]
    Ended,
}

impl JobState {
    pub fn waits(self) -> bool {
        matches!(self, Self::Flagged | Self::Queued)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Group {
    #[default]
    NoRow,
    /// A free row, in the line since its last turn ended.
    Due,
    Asleep,
    Claimed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Step {
    #[default]
    Idle,
    /// Reads the next page of flags.
    Page,
    /// Locks the next group in the line.
    Lock,
    /// Looks at the group that it has locked in a new statement, and starts its head.
    Look { group: u8, at: i8 },
    /// A receive that has met groups which it cannot start: it was rolled back, and starts these
    /// groups again, which it could start.
    Take { groups: u8 },
    /// Has ended; its transaction is open.
    Commit,
}

/// A claim. Groups and jobs are sets of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Claim {
    pub step: Step,
    pub slots: u8,
    /// The last flag read, as its place in the order of flags.
    pub cursor: Option<i8>,
    pub page: u8,
    /// There are no more flags, or none that it goes on to.
    pub last_page: bool,
    pub tried: u8,
    /// Where the groups stood in the line that this call has started.
    pub started_at: [Option<i8>; GROUPS],
    /// Groups whose rows or advisory locks the transaction has.
    pub locked: u8,
    /// The locked groups that it has started. `refused` are those that it could not start, and
    /// `asleep` those of them whose rows it has written to sleep.
    pub started: u8,
    pub refused: u8,
    pub asleep: u8,
    /// Groups that a receive could not start: put to sleep as its transaction commits.
    pub met: u8,
    /// Jobs whose flags it has cleared.
    pub cleared: u8,
    /// Has the adopter's lock of the queue: a mutation.
    pub adopter: bool,
    /// Groups that this call has to start: idle and due before it began, and locked by nothing.
    pub due: u8,
    /// Groups that another transaction has locked since.
    pub touched: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct State {
    pub jobs: [JobState; JOBS],
    pub groups: [Group; GROUPS],
    pub claims: [Claim; SESSIONS],
    /// Jobs whose claims are committed.
    pub running: u8,
    pub unfair: bool,
    pub unconfined: bool,
}

pub fn bits(of: impl Iterator<Item = usize>) -> u8 {
    of.fold(0, |bits, it| bits | 1 << it)
}

pub fn each(bits: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |it| bits & 1 << it != 0)
}

impl State {
    /// Returns the state that a new statement of the session sees, with the session's own writes.
    pub fn seen_by(&self, session: usize) -> ([JobState; JOBS], [Group; GROUPS]) {
        let own = &self.claims[session];
        let cleared = |job: usize| own.cleared & 1 << job != 0;
        let jobs = array::from_fn(|job| match self.jobs[job] {
            JobState::Flagged if cleared(job) => JobState::Queued,
            state => state,
        });
        let groups = array::from_fn(|group| {
            if own.started & 1 << group != 0 {
                Group::Claimed
            } else if own.asleep & 1 << group != 0 {
                Group::Asleep
            } else {
                self.groups[group]
            }
        });
        (jobs, groups)
    }

    pub fn locked_by_others(&self, session: usize) -> u8 {
        let others = self.claims.iter().enumerate().filter(|(other, _)| *other != session);
        others.fold(0, |bits, (_, claim)| bits | claim.locked)
    }

    /// Locks a group, which other claims take note of for the promise; false if it is skipped.
    pub fn lock(&mut self, session: usize, group: usize) -> bool {
        if self.locked_by_others(session) & 1 << group != 0 {
            return false;
        }
        self.claims[session].locked |= 1 << group;
        for (other, claim) in self.claims.iter_mut().enumerate() {
            if other != session && !matches!(claim.step, Step::Idle | Step::Commit) {
                claim.touched |= 1 << group;
            }
        }
        true
    }
}

//! The step of each actor: what its transaction does next.

use crate::state::Status;

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RunResult {
    #[default]
    Success,
    Error,
    /// The job is put off, and that is not held against it.
    Snooze,
    Exhausted,
    Cancelled,
}

/// A worker's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    pub token: u8,
    /// The job of the turn that runs, or is next.
    pub job: u8,
    /// The jobs behind it in the turn, a bit for each.
    pub followers: u8,
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
    /// To record a success in the middle of a turn, which goes on.
    Stay,
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
    WakeLock { flags: u8, wakes: bool },
    ShareLock { flags: u8 },
    GroupLock { flags: u8 },
    GroupSee { flags: u8 },
    Insert { flags: u8, head: Option<u8>, wrong: bool },
    // Claim: take turns, read heads, write.
    TakeSee,
    TakeLock { seen: HeadSnapshot },
    HeadSee { seen: HeadSnapshot },
    HeadLock { head: u8, wrong: bool, alone: bool },
    FollowSee { head: u8 },
    FollowLock { head: u8, next: u8 },
    SleepClear { head: u8 },
    RetireFreeSee,
    RetireFreeLock { drained: bool },
    ClaimCommit { claim: Option<Claim> },
    // Hold, or settle by token.
    HoldSee { then: Then },
    HoldLock { then: Then },
    ClearSuspicion { then: Then },
    ReleaseCommit,
    // The handler runs, in a transaction that has the rows.
    Held,
    // The handler runs, and its session is gone.
    HoldLost,
    // The handler runs, and a lease keeps the group.
    Leased,
    // Settle.
    ManySee,
    ManyLock,
    ManyWrite,
    ParkSee,
    ParkLock { behind: u8 },
    RetireAlone,
    RetireAtOnce { drained: bool },
    Retire,
    SettleCommit,
    // The turn goes on behind the commit.
    StayCommit,
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

impl Worker {
    pub fn new(step: Step, present: bool) -> Self {
        Self {
            step,
            claim: None,
            handler: false,
            unrecorded: RunResult::default(),
            present,
            knows_down: false,
            found_dead: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    Waiting,
    // Inserted, not committed.
    Open { first: u8 },
    Done,
}

/// A step of a request. `End` is a cancel or a skip, which leave the job with that status. `Open`:
/// it has done all, and its transaction stays open. `Duplicate`: it is an enqueue's, which has
/// found the job waiting, and has said so.
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
    KeyLock { job: u8 },
    KeyLook { job: u8 },
    Duplicate { job: u8 },
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

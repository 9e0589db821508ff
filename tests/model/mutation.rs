//! Ways to get the protocol wrong. Each must be found.

/// One rule of the protocol that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A settle deletes a drained group's row by a snapshot that is older than its lock.
    RetireInOneStatement,
    /// There may be two adopters.
    AdoptWithoutLock,
    /// An adopter clears flags because it saw a row of their group, without its lock.
    ClearWithoutLock,
    /// The head is read in the statement that locks the group's row.
    LookInTheStatementThatLocks,
    /// What a worker shows of its claim is its job's attempt, not a token.
    FenceByAttempts,
    /// A take-over claims the group for its lowest id, not for the job that was claimed.
    ReclaimLowest,
    /// A judge does not wait for processes to come back after a restart.
    JudgeAfterRestart,
    /// A doubt from before the server's start counts: its grace may be over when the server is back.
    DoubtOutlivesRestart,
    /// A recovery from a crash does not count as a start, as `pg_postmaster_start_time()` has it.
    RecoveryIsNoStart,
    /// A process takes the end of its presence session for a shutdown: `pg_terminate_backend` says 57P01 too.
    TerminationIsAShutdown,
    /// A claim whose lease ran out is taken over by the first look.
    TakeOverInOneLook,
    /// A hold leaves the doubt of a first look as it is.
    HoldKeepsDoubt,
    /// An adopter clears any flag of a claimed group, also of ids below `head_id`.
    ClearBelowHead,
    /// A look has only flagged jobs below `head_id` for candidates, not those behind the lowest flag.
    LookOnlyAtFlags,
    /// A take-over of a job whose attempts are used up ends it in the claim, and retires its group.
    TakeOverRetires,
    /// The attempt is counted when it is settled.
    CountInSettle,
    /// A lease is extended without looking whose claim it is.
    ExtendWithoutToken,
    /// A claim is given back without looking whose it is.
    GiveBackWithoutToken,
    /// A worker that goes on raises `head_id`, though it has not locked the row alone.
    GoOnRaisesHead,
    /// A worker that goes on looks only behind the job that it settles.
    GoOnLooksBehind,
}

//! Ways to get the protocol wrong. The model must find each.

/// One broken rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A settle deletes a drained group's row by a snapshot that is older than its lock.
    RetireInOneStatement,
    /// An adopter inserts a row without its group's lock.
    AdoptWithoutLock,
    /// An adopter that has its group's lock does not look for a row once more.
    InsertByOldSnapshot,
    /// An adopter clears a flag of a job that was over when it read heads, without a check.
    ClearWithoutCheck,
    /// An adopter clears the flag of the job that a row sleeps for, and does not wake the row.
    ClearOfSleeper,
    /// A job that steps aside keeps its flag.
    ParkKeepsFlags,
    /// An adopter that clears a flag waits for the job's row, which a handler may have.
    ClearWithoutSkip,
    /// A transaction retires a row that it has written before.
    RetireWritten,
    /// An adopter clears flags because it saw a row of their group, without its lock.
    ClearWithoutLock,
    /// The statement that locks the group's row also reads its heads.
    ReadHeadsInTheStatementThatLocks,
    /// A worker proves its claim by its job's attempt, not by a token.
    FenceByAttempts,
    /// A take-over claims the group for its lowest id, not for the job that was claimed.
    ReclaimLowest,
    /// The failure detector does not wait for processes to come back after a restart.
    SuspectRightAfterRestart,
    /// A suspicion from before the server's start counts: its grace may be over when the server is
    /// back.
    SuspicionOutlivesRestart,
    /// A recovery from a crash does not count as a start, as `pg_postmaster_start_time()` has it.
    RecoveryIsNoStart,
    /// A promotion does not count as a start: it changes no start time.
    PromotionIsNoStart,
    /// The claims of a released node are taken over at once, though it may live.
    ReleaseNodeAtOnce,
    /// A worker forgets the rest of a turn whose next hold failed behind a commit.
    TurnForgetsNext,
    /// A process takes the end of its presence session for a shutdown: `pg_terminate_backend` says
    /// 57P01 too.
    TerminationIsAShutdown,
    /// A claim whose lease is over is taken over at once, without a suspicion and its grace.
    TakeOverWithoutSuspicion,
    /// The receipt of a strict claim counts until the job is received again.
    CountAfterTheEnd,
    /// A hold leaves a suspicion as it is.
    HoldKeepsSuspicion,
    /// An adopter clears any flag of a claimed group, also of ids below `head_id`.
    ClearBelowHead,
    /// Candidates below `head_id` are flagged jobs only, not the jobs behind the lowest flag.
    ReadOnlyFlaggedHeads,
    /// A take-over of a job without attempts left ends it in the claim, and retires its group.
    TakeOverRetires,
    /// Only the end of an attempt counts it: a take-over counts no attempt that was lost.
    CountAtTheEndOnly,
    /// A take-over counts the lost attempt, and begins the next one without asking for the limit.
    TakeOverBeyondTheLimit,
    /// A claim names its job without having locked it.
    ClaimWithoutLock,
    /// An operator acts on a job that it has locked, and does not ask whether it is claimed.
    ActWithoutLook,
    /// An operator asks whether a job is claimed in the statement that locks it.
    LookInTheStatementThatLocks,
    /// Maintenance carries out a request as soon as it has the job's lock.
    RequestWithoutLook,
    /// An operator that has found a job claimed keeps its lock until its transaction ends.
    LookKeepsLock,
    /// A duplicate of a job that waits gives the job's lock back before it commits.
    DuplicateWithoutLock,
    /// A move keeps the lock of the job behind the moved one, which it has found claimed.
    MoveKeepsNext,
    /// A lease is extended without a check of its token.
    ExtendWithoutToken,
    /// A claim is released without a check of its token.
    ReleaseWithoutToken,
    /// A success in the middle of a turn is recorded without a check of its token.
    RecordWithoutToken,
    /// A take-over raises `head_id`, though the row is not free.
    TakeOverRaisesHead,
    /// A take-over counts an attempt of each job of the turn.
    TakeOverCountsAll,
    /// A turn names followers without having locked them.
    FollowWithoutLock,
    /// A turn leaves a follower out that another transaction has locked, and names the one behind.
    FollowPastGap,
    /// A claim reads followers later than the head, and does not ask for the head once more.
    FollowBesideLate,
    /// The next handler of a turn begins though the grace of its claim is over.
    BeginAfterTheGrace,
    /// A turn goes on with its next job behind one that failed.
    GoOnAfterFailure,
    /// An operator asks whether a job is the first of a turn, and not whether the turn names it.
    LookAtFirstOnly,
    /// A move to another queue takes a flag along, and flags no job that stays.
    MoveWithoutFlag,
    /// A move does not lock its group's row, and leaves it asleep.
    MoveWakesNothing,
    /// A snooze is held against its job, as a failed attempt.
    SnoozeCounts,
    /// A job is put off any number of times.
    SnoozeWithoutBound,
    /// A job that is put off lets the next ones pass.
    SnoozeGivesItsPlaceUp,
    /// A claim locks its head by the id, and does not ask for the queue again.
    StartMoved,
}

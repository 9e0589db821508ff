//! The promises that hold in every state. The promise that everything ends is in `ending`.

use stateright::Property;

use crate::protocol::Protocol;
use crate::state::{Faults, GroupRow, JobRow, OperatorStep, Ready, State, Status, each};

pub const ORDER: &str = "P1 order";
pub const ONE_AT_A_TIME: &str = "P2 one at a time";
pub const NOTHING_LOST: &str = "P3 nothing lost";
pub const ATTEMPTS: &str = "P9 attempts are counted";
pub const STALE: &str = "P10 a stale worker does no harm";
pub const LATE: &str = "P10 a strict claim counts until its end";
pub const NO_WAIT: &str = "P3 no step waits for an open transaction";
pub const AWAKE: &str = "P8 no group sleeps for a job that is over";
pub const NOT_LEFT: &str = "P9 no living worker leaves a claim behind";

pub const ENDS_ONCE: &str = "P3 a job that is claimed has not ended";
pub const DUPLICATE: &str = "P3 a job begins after the commit of its duplicate";
pub const MOVED: &str = "P2 a job that moved is of one queue";

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ORDER, |_, s| in_order(s)),
        Property::always(ONE_AT_A_TIME, |_, s: &State| {
            !s.two_rows && s.workers.iter().filter(|worker| worker.handler).count() <= 1
        }),
        Property::always(NOTHING_LOST, |_, s| covered(s)),
        Property::always(ENDS_ONCE, |_, s| is_unfinished_while_claimed(s)),
        Property::always(ATTEMPTS, |_, s: &State| !s.seen.uncounted),
        Property::always(STALE, |_, s: &State| !s.seen.stale_write),
        Property::always(LATE, |_, s: &State| !s.seen.late_write),
        Property::always(NO_WAIT, |_, s: &State| !s.waited),
        Property::always(AWAKE, |_, s: &State| !sleeps_for_nothing(s)),
        Property::always(DUPLICATE, |_, s| waits_for_its_duplicate(s)),
        Property::always(MOVED, |_, s: &State| !s.seen.ran_moved),
        Property::always(NOT_LEFT, |model: &Protocol, s| has_owner(model, s)),
    ]
}

/// Returns whether each job started from a free group was the lowest unfinished id of its head
/// snapshot. No handler may run while a job is unfinished that was committed when its own was
/// enqueued.
fn in_order(s: &State) -> bool {
    let unfinished = s.rows.unfinished();
    let early = s.workers.iter().any(|worker| {
        let running = worker.claim.filter(|_| worker.handler);
        running.is_some_and(|claim| s.seen.before[claim.job as usize] & unfinished != 0)
    });
    !s.seen.wrong_head && !early
}

/// Returns whether the jobs that the group's row names are unfinished, and in this queue. One that
/// has succeeded in its turn has another one behind it.
fn is_unfinished_while_claimed(s: &State) -> bool {
    let Some(row) = s.rows.group.filter(|row| row.jobs != 0) else { return true };
    let done = |job| s.rows.status(job) == Some(Status::Succeeded);
    s.rows.current().is_some_and(|current| {
        each(row.jobs & !s.rows.unfinished()).all(|job| job < current && done(job))
    })
}

/// Returns whether the job of a duplicate that is not committed is not claimed.
fn waits_for_its_duplicate(s: &State) -> bool {
    !matches!(s.operator, OperatorStep::Duplicate { job } if s.rows.is_claimed(job))
}

/// Returns whether each handler that was begun is that of a claim, or counted in its job's row, and
/// none was begun beyond the limit. None that put its job off is held against it, and they are not
/// more than that limit.
pub fn is_counted(model: &Protocol, s: &State) -> bool {
    s.rows.jobs.iter().zip(s.seen.starts).zip(0..).all(|((job, starts), id)| {
        let runs = s.rows.group.is_some_and(|row| row.started) && s.rows.current() == Some(id);
        job.is_none_or(|job| {
            let failed = job.status == Status::Failed;
            starts <= job.attempts + u8::from(runs)
                && starts <= model.max_attempts + job.forgiven
                && job.snoozes <= model.max_snoozes
                && !(failed && job.attempts < model.max_attempts + job.snoozes)
        })
    })
}

/// Returns whether a group sleeps until the time of a job that is over, and no flag wakes it.
fn sleeps_for_nothing(s: &State) -> bool {
    let Some(GroupRow { ready: Ready::Sleep(job), .. }) = s.rows.group else { return false };
    s.rows.jobs[job as usize].is_none_or(JobRow::is_over) && s.rows.adoptable() == 0
}

/// Returns whether a claim is that of a worker, unless a fault has taken it from it, or its end.
fn has_owner(model: &Protocol, s: &State) -> bool {
    let Faults { lapses, holds, .. } = s.faults;
    let faults = s.faults != Faults { lapses, holds, ..model.faults } || model.deadly.is_some();
    let claim = s.rows.group.and_then(|row| row.claim);
    let owned =
        |token| s.workers.iter().any(|worker| worker.claim.is_some_and(|it| it.token == token));
    faults || s.rows.group.is_some_and(|row| row.is_over()) || claim.is_none_or(owned)
}

/// Returns whether, in the committed rows, each unfinished job has a flag at or below it, or a row
/// whose heads include it.
fn covered(s: &State) -> bool {
    let flagged = s.rows.flagged();
    each(s.rows.unfinished()).all(|id| {
        flagged & ((2 << id) - 1) != 0
            || s.rows.group.is_some_and(|row| id >= row.head || row.names(id))
    })
}

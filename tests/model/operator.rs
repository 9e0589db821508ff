//! Requests of an operator: cancel, retry (and redrive), unhalt, redrive of parked jobs. Each is
//! one statement.

use crate::database::Lock;
use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::state::{
    GroupRow, JobRow, OPERATOR, OperatorStep, Ready, Rows, State, Status, each, lowest,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    Cancel(u8),
    Retry(u8),
    /// Of all dead letters with which no job is parked.
    Redrive,
    Unhalt,
    RedriveParked,
    /// To another queue.
    Move(u8),
    /// Of the node that has the claim: its claims are suspected.
    ReleaseNode,
}

/// Returns the parked jobs and the failed ones that they are parked with.
fn unit(rows: &Rows) -> u8 {
    rows.which(|_, row| {
        row.parked_with.is_some() && matches!(row.status, Status::Failed | Status::Parked)
    })
}

/// Returns the failed jobs that others are parked with, or are being parked.
fn with_unit(rows: &Rows) -> u8 {
    let parked = each(rows.which(|_, row| row.status == Status::Parked));
    let with = parked.filter_map(|id| rows.jobs[id as usize]?.parked_with);
    let parking = rows.group.filter(|row| row.park_to.is_some()).and_then(|row| row.halted_by);
    with.chain(parking).fold(0, |bits, id| bits | 1 << id)
}

impl Protocol {
    /// Takes the snapshot of a request's statement. Returns false if that finds nothing to do.
    pub fn ask(&self, s: &mut State, request: usize) -> bool {
        if s.operator != OperatorStep::Idle || s.requested & 1 << request != 0 {
            return false;
        }
        let rows = s.snapshot(OPERATOR);
        match self.requests[request] {
            Request::Cancel(job) => match rows.status(job) {
                Some(Status::Queued | Status::Parked) => {
                    s.operator = OperatorStep::CancelLock { job };
                }
                // A handler may have the row: the cancel is requested, not written.
                Some(Status::Started) => s.rows.asked |= 1 << job,
                _ => return false,
            },
            Request::Retry(job) => {
                let dead = rows.which(|id, row| {
                    id == job && matches!(row.status, Status::Failed | Status::Cancelled)
                });
                return self.ask_again(s, request, dead & !with_unit(&rows));
            }
            Request::Redrive => {
                let dead = rows.which(|_, row| row.status == Status::Failed);
                return self.ask_again(s, request, dead & !with_unit(&rows));
            }
            Request::Unhalt => {
                let halted =
                    rows.group.filter(|row| row.halted_by.is_some() && row.park_to.is_none());
                let row = halted.and_then(|_| s.lock_group(OPERATOR, Lock::NoKeyUpdate));
                let Some(row) = row else { return false };
                s.write_group(OPERATOR, unhalted(&row));
                s.commit(OPERATOR);
            }
            Request::ReleaseNode => {
                let claimed = |row: &GroupRow| row.claim.is_some() && row.suspect != row.claim;
                let row = s.rows.group.filter(claimed).filter(|_| s.locks.group.is_none());
                let Some(row) = row else { return false };
                let ready = if self.is(Mutation::ReleaseNodeAtOnce) {
                    Ready::Due
                } else {
                    Ready::Grace { by_detector: false }
                };
                s.rows.group = Some(GroupRow { suspect: row.claim, ready, ..row });
            }
            Request::Move(job) => {
                if rows.status(job) != Some(Status::Queued) {
                    return false;
                }
                s.operator = OperatorStep::MoveLock { job };
            }
            Request::RedriveParked => {
                let unit = unit(&rows);
                if unit == 0 || rows.group.is_some_and(|row| row.park_to.is_some()) {
                    return false;
                }
                s.operator = OperatorStep::UnitLock { unit };
            }
        }
        s.requested |= 1 << request;
        true
    }

    fn ask_again(&self, s: &mut State, request: usize, dead: u8) -> bool {
        if dead == 0 {
            return false;
        }
        let halted_by = s.rows.group.and_then(|row| row.halted_by);
        let halted = halted_by.is_some_and(|job| dead & 1 << job != 0);
        s.operator = OperatorStep::RetryLock { dead, halted };
        s.requested |= 1 << request;
        true
    }

    /// The request's statement locks its rows and writes them.
    pub fn carry_out(&self, s: &mut State) -> bool {
        match s.operator {
            OperatorStep::Idle => return false,
            OperatorStep::CancelLock { job } => cancel(s, job),
            OperatorStep::RetryLock { dead, halted } => {
                let dead = retry(s, dead);
                if halted && dead != 0 {
                    s.operator = OperatorStep::RetryUnhalt { dead };
                    return true;
                }
            }
            // The one statement that waits for a row, with the jobs' rows locked meanwhile.
            OperatorStep::RetryUnhalt { dead } => {
                let exists = s.rows.group.is_some();
                let halted_by_them = |row: &GroupRow| {
                    row.park_to.is_none() && row.halted_by.is_some_and(|job| dead & 1 << job != 0)
                };
                match s.lock_group(OPERATOR, Lock::NoKeyUpdate) {
                    Some(row) if halted_by_them(&row) => s.write_group(OPERATOR, unhalted(&row)),
                    None if exists => return false,
                    _ => {}
                }
            }
            OperatorStep::UnitLock { unit } => redrive(s, unit),
            OperatorStep::MoveLock { job } => {
                let locked = s.lock_job(OPERATOR, job);
                if locked.is_some_and(|row| row.status == Status::Queued) && self.wake_for_move(s) {
                    s.operator = OperatorStep::MoveSee { job };
                    return true;
                }
            }
            // By a snapshot younger than the lock.
            OperatorStep::MoveSee { job } => {
                let behind = s.snapshot(OPERATOR).unfinished() & !((2 << job) - 1);
                s.operator = OperatorStep::MoveNext { job, next: lowest(behind) };
                return true;
            }
            OperatorStep::MoveNext { job, next } => self.move_away(s, job, next),
        }
        s.commit(OPERATOR);
        s.operator = OperatorStep::Idle;
        true
    }
}

impl Protocol {
    /// Locks and wakes the group's row, which may sleep for the job that is to go. Returns false if
    /// another transaction has it.
    fn wake_for_move(&self, s: &mut State) -> bool {
        if s.snapshot(OPERATOR).group.is_none() || self.is(Mutation::MoveWakesNothing) {
            return true;
        }
        let Some(row) = s.lock_group(OPERATOR, Lock::NoKeyUpdate) else { return false };
        if row.claim.is_none() && row.halted_by.is_none() {
            s.write_group(OPERATOR, GroupRow { ready: Ready::Due, ..row });
        }
        true
    }

    /// Moves a job that is locked. The next one is flagged in its place; if that waits and cannot
    /// be locked, nothing is done.
    fn move_away(&self, s: &mut State, job: u8, next: Option<u8>) {
        let waits = |id: u8| s.snapshot(OPERATOR).status(id) == Some(Status::Queued);
        if let Some(next) = next.filter(|next| waits(*next))
            && !self.is(Mutation::MoveWithoutFlag)
        {
            let locked = s.lock_job(OPERATOR, next).filter(|row| row.status == Status::Queued);
            let Some(row) = locked else { return };
            s.write_job(OPERATOR, next, JobRow { flagged: true, ..row });
        }
        if let Some(row) = s.snapshot(OPERATOR).jobs[job as usize] {
            s.write_job(OPERATOR, job, JobRow { status: Status::Moved, flagged: false, ..row });
        }
    }
}

fn cancel(s: &mut State, job: u8) {
    let waiting = |row: &JobRow| matches!(row.status, Status::Queued | Status::Parked);
    match s.lock_job(OPERATOR, job).filter(waiting) {
        Some(row) => {
            let (status, parked_with) = (Status::Cancelled, None);
            // The flag makes a claim read the group's heads again: the group may have waited for
            // this job.
            s.write_job(OPERATOR, job, JobRow { status, flagged: true, parked_with, ..row });
        }
        None => s.rows.asked |= 1 << job,
    }
}

/// Queues dead jobs again and returns those that could be locked; the first of them is flagged.
fn retry(s: &mut State, dead: u8) -> u8 {
    let is_dead = |row: &JobRow| matches!(row.status, Status::Failed | Status::Cancelled);
    let mut locked = 0;
    for job in each(dead) {
        if s.lock_job(OPERATOR, job).is_some_and(|row| is_dead(&row)) {
            locked |= 1 << job;
        }
    }
    for job in each(locked) {
        if let Some(row) = s.snapshot(OPERATOR).jobs[job as usize] {
            let flagged = row.flagged || lowest(locked) == Some(job);
            s.write_job(OPERATOR, job, JobRow { flagged, ..requeued(row) });
        }
    }
    locked
}

/// Redrives all of the unit or nothing; the lowest id is flagged, and goes first.
fn redrive(s: &mut State, unit: u8) {
    let of_unit = |row: &JobRow| matches!(row.status, Status::Failed | Status::Parked);
    let locked = each(unit).filter(|job| {
        s.lock_job(OPERATOR, *job).is_some_and(|row| of_unit(&row) && row.parked_with.is_some())
    });
    if locked.count() != unit.count_ones() as usize {
        return;
    }
    for job in each(unit) {
        let Some(row) = s.snapshot(OPERATOR).jobs[job as usize] else { continue };
        let flagged = row.flagged || lowest(unit) == Some(job);
        let row = if row.status == Status::Failed {
            JobRow { flagged, ..requeued(row) }
        } else {
            JobRow { flagged, status: Status::Queued, parked_with: None, ..row }
        };
        s.write_job(OPERATOR, job, row);
    }
}

fn requeued(row: JobRow) -> JobRow {
    JobRow { status: Status::Queued, due: true, forgiven: row.attempts, parked_with: None, ..row }
}

fn unhalted(row: &GroupRow) -> GroupRow {
    GroupRow { halted_by: None, park_to: None, ready: Ready::Due, ..*row }
}

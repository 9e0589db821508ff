//! Requests of an operator: cancel, skip, move, retry (and redrive), unhalt, redrive of parked
//! jobs. And the enqueue of a duplicate, by a unique key that a job has until it starts.
//!
//! A job that waits and one that runs look the same, and the lock of a claim leaves no new version
//! of its job's row. So a cancel, a skip and a move lock the job, and then read the group's claim
//! in a new statement. Who finds the job claimed gives its lock back. A job that has ended is no
//! one's: a retry and a redrive decide by its own row. Their transactions may stay open.

use crate::database::Lock;
use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::state::{
    GroupRow, JobRow, OPERATOR, OperatorStep, Ready, Rows, State, Status, each, lowest,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    Cancel(u8),
    Skip(u8),
    Retry(u8),
    /// Redrives all dead letters with which no job is parked.
    Redrive,
    Unhalt,
    RedriveParked,
    /// To another queue.
    Move(u8),
    /// An enqueue whose unique key the job has.
    Duplicate(u8),
    /// Releases the node that has the claim: its claims are suspected.
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
                    self.ask_end(s, &rows, job, Status::Cancelled);
                }
                _ => return false,
            },
            Request::Skip(job) => {
                let halted = rows.group.is_some_and(|row| row.halted_by.is_some());
                if rows.status(job) != Some(Status::Queued) || halted {
                    return false;
                }
                self.ask_end(s, &rows, job, Status::Failed);
            }
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
            Request::Duplicate(job) => {
                if rows.status(job) != Some(Status::Queued) {
                    return false;
                }
                s.operator = OperatorStep::KeyLock { job };
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

    /// Begins a cancel or a skip of a job that is queued or parked.
    fn ask_end(&self, s: &mut State, rows: &Rows, job: u8, status: Status) {
        if self.is(Mutation::LookInTheStatementThatLocks) && self.finds_claimed(rows, job) {
            return leave_request(s, job, status);
        }
        s.operator = OperatorStep::EndLock { job, status };
    }

    /// Returns whether a claim names the job: as the one that runs, or as one behind it.
    pub fn finds_claimed(&self, rows: &Rows, job: u8) -> bool {
        let looks = !self.is(Mutation::LookAtFirstOnly)
            || rows.group.and_then(|row| lowest(row.jobs)) == Some(job);
        looks && rows.is_claimed(job)
    }

    fn acts_at_once(&self) -> bool {
        self.is(Mutation::ActWithoutLook) || self.is(Mutation::LookInTheStatementThatLocks)
    }

    /// Ends a request that has found its job claimed. The lock goes with the savepoint that it was
    /// taken behind: a settle must not wait for a transaction that stays open.
    fn give_back(&self, s: &mut State) -> bool {
        if self.is(Mutation::LookKeepsLock) {
            s.operator = OperatorStep::Open;
        } else {
            s.rollback(OPERATOR);
            s.operator = OperatorStep::Idle;
        }
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
            OperatorStep::EndLock { job, status } => {
                if lock_waiting(s, OPERATOR, job).is_none() {
                    leave_request(s, job, status);
                } else if self.acts_at_once() {
                    end(s, OPERATOR, job, status);
                } else {
                    s.operator = OperatorStep::EndLook { job, status };
                    return true;
                }
            }
            OperatorStep::EndLook { job, status } => {
                if self.finds_claimed(&s.snapshot(OPERATOR), job) {
                    leave_request(s, job, status);
                    return self.give_back(s);
                }
                end(s, OPERATOR, job, status);
                s.operator = OperatorStep::Open;
                return true;
            }
            // A job that has begun, or whose row is locked, has lost its key: another one is
            // inserted.
            OperatorStep::KeyLock { job } => {
                let waits = |row: &JobRow| row.status == Status::Queued && row.attempts == 0;
                if s.lock_job(OPERATOR, job).is_some_and(|row| waits(&row)) {
                    s.operator = OperatorStep::KeyLook { job };
                    return true;
                }
            }
            OperatorStep::KeyLook { job } => {
                if self.finds_claimed(&s.snapshot(OPERATOR), job) && !self.acts_at_once() {
                    return self.give_back(s);
                }
                if self.is(Mutation::DuplicateWithoutLock) {
                    s.rollback(OPERATOR);
                }
                s.operator = OperatorStep::Duplicate { job };
                return true;
            }
            OperatorStep::Duplicate { .. } | OperatorStep::Open => {}
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
                if locked.is_some_and(|row| row.status == Status::Queued) {
                    s.operator = OperatorStep::MoveLook { job };
                    return true;
                }
            }
            OperatorStep::MoveLook { job } => {
                let claimed = self.finds_claimed(&s.snapshot(OPERATOR), job);
                if claimed && !self.acts_at_once() {
                    return self.give_back(s);
                }
                if self.wake_for_move(s) {
                    s.operator = OperatorStep::MoveSee { job };
                    return true;
                }
            }
            // By a snapshot younger than the lock. A claimed job needs no flag.
            OperatorStep::MoveSee { job } => {
                let rows = s.snapshot(OPERATOR);
                let next = lowest(rows.unfinished() & !((2 << job) - 1));
                let next = next.filter(|next| !self.finds_claimed(&rows, *next));
                s.operator = OperatorStep::MoveNext { job, next };
                return true;
            }
            OperatorStep::MoveNext { job, next } => {
                if self.lock_next(s, next) {
                    s.operator = OperatorStep::MoveAway { job, next };
                    return true;
                }
            }
            OperatorStep::MoveAway { job, next } => {
                self.move_away(s, job, next);
                s.operator = OperatorStep::Open;
                return true;
            }
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

    /// Locks the job that is to be flagged. If that fails, nothing is done.
    fn lock_next(&self, s: &mut State, next: Option<u8>) -> bool {
        let Some(next) = next else { return true };
        s.lock_job(OPERATOR, next).is_some_and(|row| row.status == Status::Queued)
    }

    /// Moves a job that is locked. The next one, locked as well, is flagged in its place. If that
    /// is claimed by now, it needs no flag, since its group's `head_id` is not above it. Its lock
    /// is given back.
    fn move_away(&self, s: &mut State, job: u8, next: Option<u8>) {
        let rows = s.snapshot(OPERATOR);
        let locked = |id: &u8| s.locks.jobs[*id as usize] == Some(OPERATOR as u8);
        if let Some(next) = next.filter(locked) {
            if self.finds_claimed(&rows, next) && !self.is(Mutation::MoveKeepsNext) {
                s.locks.jobs[next as usize] = None;
            } else if let Some(row) = rows.jobs[next as usize]
                && !self.is(Mutation::MoveWithoutFlag)
            {
                s.write_job(OPERATOR, next, JobRow { flagged: true, ..row });
            }
        }
        if let Some(row) = s.snapshot(OPERATOR).jobs[job as usize] {
            s.write_job(OPERATOR, job, JobRow { status: Status::Moved, flagged: false, ..row });
        }
    }
}

/// Locks a job that is queued or parked; a queued one may be claimed.
pub fn lock_waiting(s: &mut State, session: usize, job: u8) -> Option<JobRow> {
    let waiting = |row: &JobRow| matches!(row.status, Status::Queued | Status::Parked);
    s.lock_job(session, job).filter(waiting)
}

/// Ends a job that is locked and that nobody has claimed. The flag makes a claim read the group's
/// heads again: the group may have waited for this job.
pub fn end(s: &mut State, session: usize, job: u8, status: Status) {
    if let Some(row) = s.snapshot(session).jobs[job as usize] {
        s.write_job(session, job, JobRow { status, flagged: true, parked_with: None, ..row });
    }
}

/// Leaves the request to cancel a job that runs, or whose row is locked. A skip does nothing.
fn leave_request(s: &mut State, job: u8, status: Status) {
    s.rows.asked |= u8::from(status == Status::Cancelled) << job;
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

//! Settle: record the outcome and pass the turn on, in a transaction that has the rows by their
//! token. Behind the group's last job the row is retired, if no adopter shares it.

use crate::claim::freed;
use crate::database::Lock;
use crate::mutation::Mutation;
use crate::properties::is_counted;
use crate::protocol::{OutOfAttempts, Protocol};
use crate::state::{GroupRow, JobRow, OperatorStep, Ready, RunResult, State, Status, Step, Then};

impl Protocol {
    /// The transaction has both rows. Only a success in its handler's own transaction `retires`.
    pub fn settle(&self, s: &mut State, w: usize, result: RunResult, retires: bool) {
        let Some(claim) = s.workers[w].claim else { return };
        let rows = s.snapshot(w);
        let (Some(job), Some(group)) = (rows.jobs[claim.job as usize], rows.group) else { return };
        // A success counts only with its commit.
        let counts = result != RunResult::Success || self.is_receiver(w);
        s.workers[w].unrecorded = if counts { result } else { RunResult::Error };
        let asked = rows.asked & 1 << claim.job != 0;
        let mut job = job.ended(job.status, group.started);
        let bound = self.is(Mutation::SnoozeWithoutBound) || job.snoozes < self.max_snoozes;
        let snoozes = result == RunResult::Snooze && bound && !asked;
        if snoozes {
            job.snoozes += 1;
            job.forgiven += u8::from(!self.is(Mutation::SnoozeCounts));
        }
        let status = match result {
            RunResult::Success => Status::Succeeded,
            _ if asked => Status::Cancelled,
            RunResult::Cancelled => Status::Cancelled,
            RunResult::Snooze if snoozes => Status::Queued,
            RunResult::Error | RunResult::Snooze if job.counted() < self.max_attempts => {
                Status::Queued
            }
            RunResult::Error | RunResult::Snooze | RunResult::Exhausted => Status::Failed,
        };
        let due = status != Status::Queued;
        match (status, self.out_of_attempts) {
            (Status::Failed, OutOfAttempts::Halt) => {
                s.write_job(w, claim.job, JobRow { status, due, ..job });
                let halted_by = Some(claim.job);
                s.write_group(w, GroupRow { ready: Ready::Never, halted_by, ..freed(&group) });
                s.workers[w].step = Step::SettleCommit;
            }
            (Status::Failed, OutOfAttempts::Park) => {
                let parked_with = Some(claim.job);
                s.write_job(w, claim.job, JobRow { status, due, parked_with, ..job });
                s.workers[w].step = Step::ParkSee;
            }
            (Status::Queued, _) if claim.followers != 0 && self.is(Mutation::GoOnAfterFailure) => {
                s.write_job(w, claim.job, JobRow { due, ..job });
                s.workers[w].step = Step::StayCommit;
            }
            (Status::Queued, _) if snoozes && self.is(Mutation::SnoozeGivesItsPlaceUp) => {
                s.write_job(w, claim.job, JobRow { due, ..job });
                s.write_group(w, GroupRow { head: claim.job + 1, ..freed(&group) });
                s.workers[w].step = Step::SettleCommit;
            }
            // A retry passes the turn on: the job itself is unfinished.
            _ => {
                s.write_job(w, claim.job, JobRow { status, due, ..job });
                self.end_turn(s, w, retires && rows.unfinished() >> (claim.job + 1) == 0);
            }
        }
    }

    pub fn end_turn(&self, s: &mut State, w: usize, retires: bool) {
        if retires {
            s.workers[w].step = Step::RetireAlone;
        } else {
            self.pass_turn(s, w);
        }
    }

    pub fn pass_turn(&self, s: &mut State, w: usize) {
        if let Some(row) = s.snapshot(w).group {
            s.write_group(w, freed(&row));
        }
        s.workers[w].step = Step::SettleCommit;
    }

    /// Fails while an adopter shares the row; then the row stays for another claim. So does a row
    /// that its own transaction has written: a share of its committed version would follow it to
    /// the deletion, and wait.
    pub fn lock_alone(&self, s: &mut State, w: usize) {
        if s.has_written_group(w) && !self.is(Mutation::RetireWritten) {
            return self.pass_turn(s, w);
        }
        if self.is(Mutation::RetireInOneStatement) {
            let drained = s.snapshot(w).unfinished() == 0;
            s.workers[w].step = Step::RetireAtOnce { drained };
            return;
        }
        if s.lock_group(w, Lock::Update).is_some() {
            s.workers[w].step = Step::Retire;
        } else {
            self.pass_turn(s, w);
        }
    }

    /// For a mutation: retires by the snapshot of the statement that has only now locked the row.
    pub fn retire_at_once(&self, s: &mut State, w: usize, drained: bool) {
        if s.lock_group(w, Lock::Update).is_some() && drained {
            s.delete_group(w);
            s.workers[w].step = Step::SettleCommit;
        } else {
            self.pass_turn(s, w);
        }
    }

    /// Retires in a new statement: its snapshot is younger than the lock.
    pub fn retire(&self, s: &mut State, w: usize) {
        let rows = s.snapshot(w);
        if rows.unfinished() == 0 && rows.group.is_some_and(|row| row.halted_by.is_none()) {
            s.delete_group(w);
            s.workers[w].step = Step::SettleCommit;
        } else {
            self.pass_turn(s, w);
        }
    }

    /// Settles leased successes: locks their groups' rows alone in a statement of its own.
    pub fn see_many(&self, s: &mut State, w: usize) {
        let token = s.workers[w].claim.map(|claim| claim.token);
        if s.snapshot(w).group.is_some_and(|row| row.claim == token) {
            s.workers[w].step = Step::ManyLock;
        } else {
            self.lose(s, w);
        }
    }

    pub fn lock_many(&self, s: &mut State, w: usize) {
        let token = s.workers[w].claim.map(|claim| claim.token);
        let row = s.lock_group(w, Lock::Update).filter(|row| row.claim == token);
        s.workers[w].step = if row.is_some() {
            Step::ManyWrite
        } else {
            // One by one, with the weaker lock.
            s.rollback(w);
            Step::HoldSee { then: Then::Record(RunResult::Success) }
        };
    }

    /// Waits for a session that has the job's row for a moment. The other claims of its batch wait
    /// as well, so no session may have that for longer.
    pub fn write_many(&self, s: &mut State, w: usize) -> bool {
        let Some(claim) = s.workers[w].claim else { return false };
        let Some(job) = s.lock_job(w, claim.job) else {
            s.waited |= matches!(s.operator, OperatorStep::Open | OperatorStep::Duplicate { .. });
            return s.waited;
        };
        s.write_job(w, claim.job, job.ended(Status::Succeeded, true));
        if s.snapshot(w).unfinished() == 0 {
            s.delete_group(w);
            s.workers[w].step = Step::SettleCommit;
        } else {
            self.pass_turn(s, w);
        }
        s.workers[w].unrecorded = RunResult::Success;
        true
    }

    pub fn write_success(&self, s: &mut State, w: usize) {
        let Some(claim) = s.workers[w].claim else { return };
        if let Some(job) = s.snapshot(w).jobs[claim.job as usize] {
            s.write_job(w, claim.job, job.ended(Status::Succeeded, true));
        }
    }

    pub fn commit_settle(&self, s: &mut State, w: usize, answered: bool) {
        let then = match s.workers[w].step {
            Step::ReleaseCommit => Then::Release,
            _ => Then::Record(s.workers[w].unrecorded),
        };
        self.commit_counted(s, w);
        let worker = &mut s.workers[w];
        if worker.claim.is_none() {
            // A claim alone, perhaps with the ack of the job that it has just claimed.
            worker.step = Step::Idle;
        } else if answered {
            worker.claim = None;
            worker.unrecorded = RunResult::default();
            worker.step = Step::Idle;
        } else {
            // The worker tries again, and finds that its token is gone.
            worker.step = Step::HoldSee { then };
        }
    }

    /// Commits. P10: a session that settles has the claim now. P9: an attempt is counted once,
    /// in the transaction that ends its job or its claim. A receiver's may begin and end in one.
    pub fn commit_counted(&self, s: &mut State, w: usize) {
        let before = s.rows;
        let token = before.group.and_then(|row| row.claim);
        let settled = s.workers[w].claim.filter(|_| s.has_written(w));
        s.seen.stale_write |= settled.is_some_and(|settled| token != Some(settled.token));
        s.commit(w);
        let now = s.rows;
        for (id, rows) in (0..).zip(before.jobs.iter().zip(now.jobs)) {
            let (Some(old), Some(new)) = rows else { continue };
            let stays = |row: GroupRow| now.group.is_some_and(|now| now.claim == row.claim);
            let over = |row| !stays(row) || !new.status.unfinished();
            let current = before.current() == Some(id);
            let ended = before.group.is_some_and(|row| current && row.started && over(row));
            let most = u8::from(ended) + u8::from(self.is_receiver(w));
            s.seen.uncounted |= new.attempts > old.attempts + most;
        }
        s.seen.uncounted |= !is_counted(self, s);
    }
}

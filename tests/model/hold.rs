//! Hold: lock the group's row by the token, then the job's row. The purpose is a handler's run, its
//! first `tx()`, the record of its outcome, or the release of a claim whose handler has not begun.

use crate::claim::freed;
use crate::database::Lock;
use crate::mutation::Mutation;
use crate::properties::is_counted;
use crate::protocol::{Hold, Protocol};
use crate::state::{Claim, GroupRow, JobRow, Ready, Rows, RunResult, State, Step, Then};

impl Protocol {
    /// Returns whether a snapshot shows the worker's claim.
    fn is_ours(&self, rows: &Rows, claim: Claim) -> bool {
        if self.is(Mutation::FenceByAttempts) {
            let job = rows.jobs[claim.job as usize];
            let same = |job: JobRow| job.status.unfinished() && job.attempts == claim.attempts;
            return rows.is_claimed(claim.job) && job.is_some_and(same);
        }
        rows.group.is_some_and(|row| row.claim == Some(claim.token) && !self.is_over(&row))
    }

    /// Returns whether the claim of a row is strict, and over.
    fn is_over(&self, row: &GroupRow) -> bool {
        row.is_over() && !self.is(Mutation::CountAfterTheEnd)
    }

    pub fn see_claim(&self, s: &mut State, w: usize, then: Then) {
        let Some(claim) = s.workers[w].claim else { return };
        let rows = s.snapshot(w);
        if !self.is_ours(&rows, claim) {
            return self.lose(s, w);
        }
        s.workers[w].step = Step::HoldLock { then };
    }

    pub fn hold(&self, s: &mut State, w: usize, then: Then) {
        let Some(claim) = s.workers[w].claim else { return };
        let by_attempts = self.is(Mutation::FenceByAttempts);
        let any = match then {
            Then::Release => self.is(Mutation::ReleaseWithoutToken),
            Then::Stay => self.is(Mutation::RecordWithoutToken),
            _ => false,
        };
        let group = s.lock_group(w, Lock::NoKeyUpdate);
        let is_ours = |row: &GroupRow| {
            by_attempts && row.names(claim.job)
                || any
                || row.claim == Some(claim.token) && !self.is_over(row)
        };
        let Some(group) = group.filter(is_ours) else {
            // Skipped is not lost: only a plain read that shows another token, or no row, is a
            // loss.
            if self.is_ours(&s.snapshot(w), claim) {
                s.workers[w].step = Step::HoldSee { then };
            } else {
                self.lose(s, w);
            }
            return;
        };
        if then == Then::Release {
            // No attempt of this job has begun, so there is nothing to write in it.
            s.write_group(w, freed(&group));
            s.workers[w].step = Step::ReleaseCommit;
            return;
        }
        let job = s.lock_job(w, claim.job).filter(|job| job.status.unfinished());
        let job = job.filter(|job| !by_attempts || job.attempts == claim.attempts);
        let over = s.rows.jobs[claim.job as usize].is_some_and(JobRow::is_over);
        match then {
            // The claim stands: the success was recorded, and the answer was lost.
            Then::Stay if over => {
                s.rollback(w);
                return self.go_on(s, w);
            }
            Then::Record(_) if over => return self.pass_turn(s, w),
            _ => {}
        }
        if job.is_none() {
            if matches!(then, Then::Record(_) | Then::Stay) {
                s.rollback(w);
            }
            s.workers[w].step = Step::HoldSee { then };
            return;
        }
        s.seen.late_write |= group.is_over();
        let suspected = group.suspect.is_some() && !self.is(Mutation::HoldKeepsSuspicion);
        let asked = s.rows.asked & 1 << claim.job != 0;
        match then {
            Then::Record(result) => self.settle(s, w, result, false),
            Then::Stay => self.stay(s, w, false),
            Then::Release => {}
            _ if suspected => {
                s.rollback(w);
                s.workers[w].step = Step::ClearSuspicion { then };
            }
            Then::Tx => s.workers[w].step = Step::Held,
            Then::Handle if asked => self.settle(s, w, RunResult::Cancelled, false),
            Then::Handle if claim.exhausted => self.settle(s, w, RunResult::Exhausted, false),
            Then::Handle => {
                self.begin_handler(s, w);
                s.workers[w].step = Step::Held;
            }
        }
    }

    /// Begins a release: no slot comes free for a claimed job.
    pub fn release(&self, s: &mut State, w: usize) -> bool {
        let waits = self.may_release && s.workers[w].step == Step::HoldSee { then: Then::Handle };
        if waits {
            s.workers[w].step = Step::HoldSee { then: Then::Release };
        }
        waits
    }

    /// Clears a suspicion, in a short transaction of its own. If the suspicion stayed, the group
    /// could be taken over without a grace when this hold breaks.
    pub fn clear_suspicion(&self, s: &mut State, w: usize, then: Then) {
        s.workers[w].step = Step::HoldSee { then };
        let token = s.workers[w].claim.map(|claim| claim.token);
        if let Some(row) = s.lock_group(w, Lock::NoKeyUpdate).filter(|row| row.claim == token) {
            s.write_group(w, GroupRow { suspect: None, ready: Ready::Lease, ..row });
        }
        s.commit(w);
    }

    /// The claim was taken over: a handler that runs is told, and dropped.
    pub fn lose(&self, s: &mut State, w: usize) {
        s.rollback(w);
        let worker = &mut s.workers[w];
        worker.claim = None;
        worker.handler = false;
        worker.unrecorded = RunResult::default();
        worker.step = Step::Idle;
    }

    pub fn begin_handler(&self, s: &mut State, w: usize) {
        let Some(claim) = s.workers[w].claim else { return };
        s.workers[w].handler = true;
        let starts = &mut s.seen.starts[claim.job as usize];
        // More are as wrong as that.
        *starts = 9.min(*starts + 1);
        // P9: an attempt is committed before it begins.
        let committed = |row: GroupRow| row.claim == Some(claim.token) && row.started;
        s.seen.uncounted |= !s.rows.group.is_some_and(committed) || !is_counted(self, s);
    }

    /// The handler returns. Behind a success the turn goes on.
    pub fn returns(&self, s: &mut State, w: usize, result: RunResult) -> bool {
        if !s.workers[w].handler || result == RunResult::Error && !self.may_fail {
            return false;
        }
        if result == RunResult::Snooze && self.max_snoozes == 0 {
            return false;
        }
        let stays = s.workers[w].claim.is_some_and(|claim| claim.followers != 0);
        let stays = stays && result == RunResult::Success;
        match s.workers[w].step {
            Step::Held if stays => {
                s.workers[w].handler = false;
                s.workers[w].unrecorded = RunResult::Error;
                self.stay(s, w, true);
            }
            Step::Held => {
                s.workers[w].handler = false;
                self.settle(s, w, result, result == RunResult::Success);
            }
            Step::Leased => {
                s.workers[w].handler = false;
                s.workers[w].unrecorded = result;
                s.workers[w].step = match result {
                    _ if stays => Step::HoldSee { then: Then::Stay },
                    RunResult::Success if !self.is_receiver(w) => Step::ManySee,
                    _ => Step::HoldSee { then: Then::Record(result) },
                };
            }
            _ => return false,
        }
        true
    }

    /// A handler that a lease keeps asks for its transaction.
    pub fn first_tx(&self, s: &mut State, w: usize) -> bool {
        let asks = self.tx && s.workers[w].step == Step::Leased;
        if asks {
            s.workers[w].step = Step::HoldSee { then: Then::Tx };
        }
        asks
    }

    /// Drops a handler whose hold is lost, or whose lease may be over. Its outcome is recorded by
    /// token.
    pub fn drop_handler(&self, s: &mut State, w: usize) -> bool {
        let worker = s.workers[w];
        let Some(claim) = worker.claim.filter(|_| worker.handler) else { return false };
        let stands = |row: GroupRow| row.claim == Some(claim.token) && row.ready == Ready::Lease;
        let told = match worker.step {
            Step::HoldLost => true,
            Step::Held => false,
            _ => !s.rows.group.is_some_and(stands) || self.presence && !worker.present,
        };
        if told {
            s.rollback(w);
            s.workers[w].handler = false;
            s.workers[w].step = Step::HoldSee { then: Then::Record(RunResult::Error) };
        }
        told
    }

    /// The process extends a lease by its token, which clears a suspicion.
    pub fn extend(&self, s: &mut State, w: usize) -> bool {
        let worker = s.workers[w];
        let Some(claim) = worker.claim else { return false };
        let free = s.locks.group.is_none();
        let stands = |row: &GroupRow| {
            row.claim == Some(claim.token) && !self.is_over(row)
                || self.is(Mutation::ExtendWithoutToken) && row.claim.is_some()
        };
        let to_extend = s
            .rows
            .group
            .filter(|row| stands(row) && (row.suspect.is_some() || row.ready != Ready::Lease));
        let seen = !self.presence || worker.present;
        let Some(row) = to_extend.filter(|_| self.hold_of(w) == Hold::Lease && free && seen) else {
            return false;
        };
        s.seen.stale_write |= row.claim != Some(claim.token);
        s.seen.late_write |= row.is_over();
        s.rows.group = Some(GroupRow { suspect: None, ready: Ready::Lease, ..row });
        true
    }
}

//! A turn of several jobs. Its claim names followers of the head, which it has locked as well. They
//! run one after the other under one token, and each success is recorded while the claim stands.
//! Any other end ends the turn, and so does the end of its time slice. Jobs that it has not come to
//! were never written.

use crate::mutation::Mutation;
use crate::protocol::{Hold, Protocol};
use crate::state::{GroupRow, JobRow, Ready, RunResult, State, Step, Then, each, lowest};

impl Protocol {
    /// Returns whether a claim of this head takes followers. One that was tried before runs alone:
    /// a worker's death is charged to the right job. A job with a single attempt follows none.
    pub fn leads(&self, w: usize, job: JobRow, group: &GroupRow) -> bool {
        let several = self.turn > 1 && self.max_attempts > 1 && !self.is_receiver(w);
        several && group.claim.is_none() && job.attempts == job.forgiven
    }

    /// Reads the jobs that are next in order; none if the head is not the head any more. A lower id
    /// may have been committed since heads were read, and then one that goes behind it.
    pub fn see_followers(&self, s: &mut State, w: usize, head: u8) {
        let rows = s.snapshot(w);
        let unfinished = rows.unfinished();
        let first = rows.group.and_then(|row| self.head(unfinished, &rows, &row));
        let is_head = first == Some(head) || self.is(Mutation::FollowBesideLate);
        let next = if is_head { unfinished & !((2 << head) - 1) } else { 0 };
        s.workers[w].step = Step::FollowLock { head, next };
    }

    /// Locks followers, and names all in the group's row. The first that is not had ends the line.
    pub fn lock_followers(&self, s: &mut State, w: usize, head: u8, next: u8) {
        let rows = s.snapshot(w);
        let (Some(job), Some(group)) = (rows.jobs[head as usize], rows.group) else { return };
        let may = |job: &JobRow| job.status.unfinished() && job.due && job.attempts == job.forgiven;
        let (mut followers, mut gap) = (0, false);
        for id in each(next).take(self.turn - 1) {
            let blind = self.is(Mutation::FollowWithoutLock);
            let locked = if blind { rows.jobs[id as usize] } else { s.lock_job(w, id) };
            let ours = locked.is_some_and(|job| may(&job));
            gap |= !ours && !self.is(Mutation::FollowPastGap);
            followers |= u8::from(ours && !gap) << id;
        }
        let row = self.start_job(s, w, (head, followers), job, &group);
        s.write_group(w, GroupRow { head, ..row });
    }

    /// Records a success in the middle of a turn. A hold by locks leaves a lease as one that is
    /// extended.
    pub fn stay(&self, s: &mut State, w: usize, by_locks: bool) {
        self.write_success(s, w);
        if let Some(row) = s.snapshot(w).group
            && by_locks
            && self.hold_of(w) == Hold::Lease
        {
            s.write_group(w, GroupRow { suspect: None, ready: Ready::Lease, ..row });
        }
        s.workers[w].step = Step::StayCommit;
    }

    pub fn commit_stay(&self, s: &mut State, w: usize, answered: bool) {
        self.commit_counted(s, w);
        if answered {
            self.go_on(s, w);
        } else {
            s.workers[w].step = self.record_again(s, w);
        }
    }

    /// Returns the step that finds out whether a success in the middle of a turn was recorded. By
    /// locks, the job is then recorded as one whose transaction broke.
    pub fn record_again(&self, s: &State, w: usize) -> Step {
        let then = match s.workers[w].unrecorded {
            RunResult::Success => Then::Stay,
            broken => Then::Record(broken),
        };
        Step::HoldSee { then }
    }

    /// Goes on with the next job of the turn.
    pub fn go_on(&self, s: &mut State, w: usize) {
        let Some(mut claim) = s.workers[w].claim else { return };
        let Some(next) = lowest(claim.followers) else { return };
        claim.job = next;
        claim.followers &= !(1 << next);
        s.workers[w].claim = Some(claim);
        s.workers[w].unrecorded = RunResult::default();
        self.begin_job(s, w);
    }

    /// Returns whether the worker's claim has begun another job before this one.
    pub fn is_in_the_middle(&self, s: &State, w: usize) -> bool {
        let Some(claim) = s.workers[w].claim else { return false };
        let behind = |row: GroupRow| lowest(row.jobs) != Some(claim.job);
        s.rows.group.is_some_and(|row| row.claim == Some(claim.token) && behind(row))
    }

    /// The time slice is over when the handler returns: the turn ends with its job.
    pub fn slice_ends(&self, s: &mut State, w: usize) -> bool {
        let Some(claim) = &mut s.workers[w].claim else { return false };
        let ends = std::mem::take(&mut claim.followers) != 0;
        ends && self.returns(s, w, RunResult::Success)
    }

    /// The commit gets through, and the next job's hold behind it fails. The worker releases the
    /// claim at once: what is left of the turn has not begun.
    pub fn fail_next(&self, s: &mut State, w: usize) -> bool {
        let fails = s.workers[w].step == Step::StayCommit && self.hold == Hold::Transaction;
        if fails {
            self.commit_stay(s, w, true);
            if self.is(Mutation::TurnForgetsNext) {
                s.workers[w].claim = None;
                s.workers[w].step = Step::Idle;
            } else {
                s.workers[w].step = Step::HoldSee { then: Then::Release };
            }
        }
        fails
    }
}

//! Chained turns: a settle claims the group's next job in the same commit, under a new token.

use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::state::{Claim, GroupRow, JobRow, Ready, State, Status, Step, Then, lowest};

impl Protocol {
    /// Reads the group's next head with a snapshot that is younger than the lock of its row.
    pub fn see_next(&self, s: &mut State, w: usize, followed: bool) {
        let Some(claim) = s.workers[w].claim else { return };
        let rows = s.snapshot(w);
        let Some(group) = rows.group else { return };
        let unfinished = rows.unfinished() & !(1 << claim.job);
        let next = if self.is(Mutation::ChainReadsOnlyBehind) {
            lowest(unfinished & !((2 << claim.job) - 1))
        } else {
            self.head(unfinished, &rows, &group)
        };
        let wrong = next != lowest(unfinished);
        match next {
            Some(next) => s.workers[w].step = Step::ChainLock { followed, next, wrong },
            None => self.succeed(s, w, followed),
        }
    }

    /// Locks the next job, ends the one before and names the next in the group's row, in one
    /// transaction. `head_id` is raised only by a claim of a free row.
    pub fn chain_next(&self, s: &mut State, w: usize, followed: bool, next: u8, wrong: bool) {
        let may = |job: &JobRow| {
            job.status == Status::Queued && job.due && job.counted() < self.max_attempts
        };
        let job = if self.is(Mutation::ChainWithoutLock) {
            s.snapshot(w).jobs[next as usize]
        } else {
            s.lock_job(w, next)
        };
        let Some(job) = job.filter(may) else { return self.succeed(s, w, followed) };
        self.write_success(s, w);
        let Some(group) = s.snapshot(w).group else { return };
        let (token, raises) = (s.fresh_token(), self.is(Mutation::ChainRaisesHead));
        s.write_group(
            w,
            GroupRow {
                claim: Some(token),
                job: Some(next),
                started: true,
                suspect: None,
                // The flag of a late job goes with its end. It has stood for the jobs behind it.
                head: if raises { next } else { group.head.min(next) },
                ready: Ready::Lease,
                ..group
            },
        );
        s.seen.wrong_head |= wrong;
        let attempts = self.claimed_attempts(job);
        let claim = Claim { token, job: next, attempts, exhausted: false };
        s.workers[w].step = Step::ChainCommit { claim };
    }

    pub fn commit_next(&self, s: &mut State, w: usize, next: Claim, answered: bool) {
        self.commit_settle(s, w, answered);
        if answered {
            let worker = &mut s.workers[w];
            worker.claim = Some(next);
            worker.step = Step::HoldSee { then: Then::Handle };
        }
    }

    /// The commit gets through, and the next job's hold behind it fails. The worker has the claim
    /// all the same, and releases it at once.
    pub fn fail_next(&self, s: &mut State, w: usize) -> bool {
        let Step::ChainCommit { claim } = s.workers[w].step else { return false };
        self.commit_settle(s, w, true);
        if !self.is(Mutation::ChainForgetsNext) {
            s.workers[w].claim = Some(claim);
            s.workers[w].step = Step::HoldSee { then: Then::Release };
        }
        true
    }
}

//! Claim: take the group's turn, read heads in a new statement, lock the head, and name it in the
//! group's row. The job's row is written only if a take-over counts a lost attempt. One short
//! transaction, which adopts before (`adopt`). A receiver's may stay open, and have other calls
//! before and after it.

use crate::database::Lock;
use crate::mutation::Mutation;
use crate::protocol::{Hold, Protocol};
use crate::state::{
    Claim, GroupRow, HeadSnapshot, JobRow, Ready, Rows, RunResult, State, Status, Step, Then, each,
    lowest,
};

const NOTHING_SEEN: HeadSnapshot = HeadSnapshot { head: None, drained: false };

impl Protocol {
    pub fn see_due(&self, s: &mut State, w: usize) {
        let rows = s.snapshot(w);
        let due = rows.group.filter(|row| row.ready == Ready::Due);
        s.workers[w].step = match due {
            Some(row) if self.is(Mutation::ReadHeadsInTheStatementThatLocks) => {
                Step::TakeLock { seen: self.head_snapshot(&rows, &row) }
            }
            Some(_) => Step::TakeLock { seen: NOTHING_SEEN },
            None => return self.write_nothing(s, w),
        };
    }

    /// Other groups are due before this one, and no slot is left for it.
    pub fn pass_by(&self, s: &mut State, w: usize) -> bool {
        let passes = s.workers[w].step == Step::TakeSee;
        if passes {
            self.write_nothing(s, w);
        }
        passes
    }

    /// Takes the turn. A claim whose lease is over is only suspected the first time, but for a
    /// strict one.
    pub fn take(&self, s: &mut State, w: usize, seen: HeadSnapshot) {
        let row = s.lock_group(w, Lock::NoKeyUpdate).filter(|row| row.ready == Ready::Due);
        let Some(row) = row else { return self.write_nothing(s, w) };
        let suspected =
            row.strict || row.suspect == row.claim || self.is(Mutation::TakeOverWithoutSuspicion);
        let old = !row.strict && row.claim.is_some() && row.claim == s.old_suspect;
        if row.claim.is_some() && (!suspected || old) {
            let ready = if old { Ready::AfterRestart } else { Ready::Grace { by_detector: false } };
            s.write_group(w, GroupRow { suspect: row.claim, ready, ..row });
            return self.write_nothing(s, w);
        }
        s.workers[w].step = Step::HeadSee { seen };
    }

    /// Returns the lowest candidate. In a free group, the candidates are the jobs from `head_id`
    /// on, and from the lowest flag on. In a claim that is taken over, the candidate is its first
    /// job that has not ended.
    fn head_snapshot(&self, rows: &Rows, group: &GroupRow) -> HeadSnapshot {
        let unfinished = rows.unfinished();
        let head = if group.jobs != 0 && !self.is(Mutation::ReclaimLowest) {
            lowest(unfinished & group.jobs)
        } else {
            self.head(unfinished, rows, group)
        };
        HeadSnapshot { head, drained: unfinished == 0 }
    }

    /// Returns the lowest candidate in `of`.
    pub fn head(&self, of: u8, rows: &Rows, group: &GroupRow) -> Option<u8> {
        let flag = lowest(rows.flagged());
        each(of).find(|id| {
            *id >= group.head
                || flag.is_some_and(|flag| match self.mutation {
                    Some(Mutation::ReadOnlyFlaggedHeads) => rows.flagged() & 1 << id != 0,
                    _ => *id >= flag,
                })
        })
    }

    /// Reads heads with a snapshot that is younger than the group's lock.
    pub fn see_head(&self, s: &mut State, w: usize, seen: HeadSnapshot) {
        let rows = s.snapshot(w);
        let Some(row) = rows.group else { return self.write_nothing(s, w) };
        let snapshot = match self.mutation {
            Some(Mutation::ReadHeadsInTheStatementThatLocks) => seen,
            _ => self.head_snapshot(&rows, &row),
        };
        let free = row.claim.is_none();
        let Some(head) = snapshot.head else {
            match (free, snapshot.drained) {
                (true, true) if self.is(Mutation::ReadHeadsInTheStatementThatLocks) => {
                    s.workers[w].step = Step::RetireFreeLock { drained: true };
                }
                // A row that its own transaction has written stays for the next claim.
                (true, true) if s.has_written_group(w) && !self.is(Mutation::RetireWritten) => {
                    self.write_nothing(s, w);
                }
                (true, true) => s.workers[w].step = Step::RetireFreeSee,
                // Another session is changing the job.
                (true, false) => self.write_nothing(s, w),
                // A take-over never retires.
                (false, _) => {
                    s.write_group(w, freed(&row));
                    self.write_nothing(s, w);
                }
            }
            return;
        };
        if free && rows.jobs[head as usize].is_some_and(|job| !job.due) {
            s.write_group(w, GroupRow { ready: Ready::Sleep(head), head, ..row });
            s.workers[w].step = Step::SleepClear { head };
            return;
        }
        let wrong = free && lowest(rows.unfinished()) != Some(head);
        let alone = self.is(Mutation::TakeOverRetires) && rows.unfinished() == 1 << head;
        s.workers[w].step = Step::HeadLock { head, wrong, alone };
    }

    /// Locks the head, checks it once more, and claims it. `head_id` moves only on a free row. A
    /// take-over writes the attempt that was lost in the same transaction: that of its head alone.
    pub fn start(&self, s: &mut State, w: usize, head: u8, wrong: bool, alone: bool) {
        let Some(group) = s.snapshot(w).group else { return self.write_nothing(s, w) };
        let free = group.claim.is_none();
        let job = if free && self.is(Mutation::ClaimWithoutLock) {
            s.snapshot(w).jobs[head as usize]
        } else {
            s.lock_job(w, head)
        };
        // A check that does not ask for the queue finds a job that was moved queued, and due.
        let moved = |job: &JobRow| self.is(Mutation::StartMoved) && job.status == Status::Moved;
        let job = job.filter(|job| (job.status.unfinished() || moved(job)) && (job.due || !free));
        let Some(job) = job else { return self.write_nothing(s, w) };
        s.seen.ran_moved |= moved(&job);
        let lost = group.started && !self.is(Mutation::CountAtTheEndOnly);
        let job = if lost { job.ended(job.status, true) } else { job };
        if self.is_exhausted(job) && !free && self.is(Mutation::TakeOverRetires) {
            s.write_job(w, head, JobRow { status: Status::Failed, ..job });
            s.workers[w].step = Step::RetireFreeLock { drained: alone };
            return;
        }
        if lost {
            let all = self.is(Mutation::TakeOverCountsAll);
            for id in each(if all { group.jobs } else { 1 << head }) {
                if let Some(job) = s.lock_job(w, id).filter(|job| job.status.unfinished()) {
                    s.write_job(w, id, job.ended(job.status, true));
                }
            }
        }
        s.seen.wrong_head |= wrong;
        if self.leads(w, job, &group) {
            s.workers[w].step = Step::FollowSee { head };
            return;
        }
        let row = self.start_job(s, w, (head, 0), job, &group);
        let raises = free || self.is(Mutation::TakeOverRaisesHead);
        s.write_group(w, GroupRow { head: if raises { head } else { group.head }, ..row });
    }

    fn is_exhausted(&self, job: JobRow) -> bool {
        job.counted() >= self.max_attempts
    }

    /// Returns the attempts that a claim remembers: only a mutation asks for them.
    fn claimed_attempts(&self, job: JobRow) -> u8 {
        if self.is(Mutation::FenceByAttempts) { job.attempts } else { 0 }
    }

    /// Returns the group's row as claimed for a job and its followers, which are locked. None is
    /// written: whoever ends an attempt counts it.
    pub fn start_job(
        &self,
        s: &mut State,
        w: usize,
        (id, followers): (u8, u8),
        job: JobRow,
        group: &GroupRow,
    ) -> GroupRow {
        let blind = group.claim.is_some() && self.is(Mutation::TakeOverBeyondTheLimit);
        let exhausted = self.is_exhausted(job) && !blind;
        let token = s.fresh_token();
        let attempts = self.claimed_attempts(job);
        let claim = Some(Claim { token, job: id, followers, attempts, exhausted });
        s.workers[w].step = Step::ClaimCommit { claim };
        GroupRow {
            claim: Some(token),
            jobs: 1 << id | followers,
            started: !exhausted,
            suspect: None,
            claimed_by: self.presence.then_some(w as u8),
            strict: self.strict && self.is_receiver(w),
            ready: Ready::Lease,
            ..*group
        }
    }

    /// The statement that retires reads once more, and locks the row alone. No adopter can share
    /// the row: it is free, and locked since before the head snapshot.
    pub fn see_drained(&self, s: &mut State, w: usize) {
        let drained = s.snapshot(w).unfinished() == 0;
        s.workers[w].step = Step::RetireFreeLock { drained };
    }

    pub fn retire_free(&self, s: &mut State, w: usize, drained: bool) {
        let row = s.lock_group(w, Lock::Update).filter(|row| row.halted_by.is_none());
        let over = self.is(Mutation::TakeOverRetires);
        match row {
            Some(row) if drained && (row.claim.is_none() || over) => s.delete_group(w),
            Some(row) if over => s.write_group(w, freed(&row)),
            _ => {}
        }
        self.write_nothing(s, w);
    }

    pub fn write_nothing(&self, s: &mut State, w: usize) {
        if s.has_written(w) {
            s.workers[w].step = Step::ClaimCommit { claim: None };
        } else {
            s.rollback(w);
            s.workers[w].step = Step::Idle;
        }
    }

    /// Commits; with an ack that a receiver has made in the same transaction before.
    pub fn commit_claim(&self, s: &mut State, w: usize, claim: Option<Claim>) {
        self.commit_settle(s, w, true);
        if claim.is_some() {
            s.workers[w].claim = claim;
            self.begin_job(s, w);
        }
    }

    /// Takes the next step with the job that the worker's claim has come to.
    pub fn begin_job(&self, s: &mut State, w: usize) {
        let Some(claim) = s.workers[w].claim else { return };
        let asked = s.rows.asked & 1 << claim.job != 0;
        let past = |row: GroupRow| row.suspect == row.claim && row.ready == Ready::Due;
        let is_past_grace = s.rows.group.is_some_and(past);
        s.workers[w].step = match self.hold_of(w) {
            Hold::Transaction => Step::HoldSee { then: Then::Handle },
            Hold::Lease if asked => Step::HoldSee { then: Then::Record(RunResult::Cancelled) },
            Hold::Lease if claim.exhausted => {
                Step::HoldSee { then: Then::Record(RunResult::Exhausted) }
            }
            // It knows by its clock that the next handler would begin too late.
            Hold::Lease if is_past_grace && !self.is(Mutation::BeginAfterTheGrace) => {
                Step::HoldSee { then: Then::Record(RunResult::Error) }
            }
            Hold::Lease => {
                self.begin_handler(s, w);
                Step::Leased
            }
        };
    }
}

/// Returns the group's row as a settle leaves it, with the turn passed on.
pub fn freed(row: &GroupRow) -> GroupRow {
    let GroupRow { head, halted_by, park_to, .. } = *row;
    GroupRow { head, halted_by, park_to, ..GroupRow::default() }
}

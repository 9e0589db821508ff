//! Claim: adopt, take the group's turn, read heads in a new statement, write. One short
//! transaction.

use crate::database::Lock;
use crate::mutation::Mutation;
use crate::protocol::{Hold, Protocol};
use crate::state::{
    Claim, GroupRow, HeadSnapshot, JobRow, Ready, Rows, RunResult, State, Status, Step, Then, each,
    lowest,
};

const NOTHING_SEEN: HeadSnapshot = HeadSnapshot { head: None, drained: false };

impl Protocol {
    /// The peek. If jobs are flagged, it takes the adopter's lock, and with it the snapshot of the
    /// flags.
    pub fn begin_claim(&self, s: &mut State, w: usize) -> bool {
        let rows = s.snapshot(w);
        let flags = rows.adoptable();
        let due = rows.group.is_some_and(|row| row.ready == Ready::Due);
        s.workers[w].step =
            if flags != 0 && (s.locks.adopter.is_none() || self.is(Mutation::AdoptWithoutLock)) {
                s.locks.adopter = Some(w as u8);
                Step::FlagsLock { flags }
            } else if due {
                Step::TakeSee
            } else {
                return false;
            };
        true
    }

    pub fn lock_flags(&self, s: &mut State, w: usize, seen: u8) {
        let mut flags = 0;
        for job in each(seen) {
            if s.lock_job(w, job).is_some_and(JobRow::is_adoptable) {
                flags |= 1 << job;
            }
        }
        s.workers[w].step = if flags == 0 { Step::TakeSee } else { Step::WakeSee { flags } };
    }

    pub fn see_free(&self, s: &mut State, w: usize, flags: u8) {
        s.workers[w].step = match s.snapshot(w).group {
            Some(row) if row.claim.is_none() => Step::WakeLock { flags },
            Some(_) => Step::ShareSee { flags },
            None => Step::Insert { flags },
        };
    }

    /// Locks a free row and clears all its flags, since every later claim reads heads after this
    /// lock. `head_id` must be lowered to them.
    pub fn wake_free(&self, s: &mut State, w: usize, flags: u8) {
        let Some(row) = s.lock_group(w, Lock::NoKeyUpdate).filter(|row| row.claim.is_none()) else {
            s.workers[w].step = Step::ShareSee { flags };
            return;
        };
        let head = row.head.min(lowest(flags).unwrap_or(row.head));
        let ready = if row.halted_by.is_none() { Ready::Due } else { row.ready };
        if (head, ready) != (row.head, row.ready) {
            s.write_group(w, GroupRow { head, ready, ..row });
        }
        self.clear(s, w, flags);
    }

    pub fn see_claimed(&self, s: &mut State, w: usize, flags: u8) {
        let claimed = s.snapshot(w).group.is_some_and(|row| row.claim.is_some());
        let step = if claimed { Step::ShareLock { flags } } else { Step::InsertSee { flags } };
        s.workers[w].step = step;
    }

    /// Shares a claimed row: its settle has not locked it alone yet, so a later head snapshot sees
    /// the job. A flag below `head_id` stays, because nothing else brings that job in.
    pub fn share_claimed(&self, s: &mut State, w: usize, flags: u8) {
        let Some(row) = s.lock_group(w, Lock::KeyShare).filter(|row| row.claim.is_some()) else {
            s.workers[w].step = Step::InsertSee { flags };
            return;
        };
        let from = if self.is(Mutation::ClearBelowHead) { 0 } else { row.head };
        self.clear(s, w, each(flags).filter(|id| *id >= from).fold(0, |bits, id| bits | 1 << id));
    }

    pub fn see_none(&self, s: &mut State, w: usize, flags: u8) {
        if s.snapshot(w).group.is_none() {
            s.workers[w].step = Step::Insert { flags };
        } else {
            let clears = self.is(Mutation::ClearWithoutLock);
            self.clear(s, w, if clears { flags } else { 0 });
        }
    }

    /// Inserts the row. No other worker has inserted one since `see_none`: that takes the adopter's
    /// lock.
    pub fn insert_new(&self, s: &mut State, w: usize, flags: u8) {
        let row = GroupRow {
            claim: None,
            job: None,
            suspect: None,
            claimed_by: None,
            head: lowest(flags).unwrap_or(0),
            ready: Ready::Due,
            halted_by: None,
            park_to: None,
        };
        s.insert_group(w, row);
        self.clear(s, w, flags);
    }

    /// Clears flags. The jobs' rows are locked since their flags were read.
    fn clear(&self, s: &mut State, w: usize, flags: u8) {
        for job in each(flags) {
            if let Some(row) = s.snapshot(w).jobs[job as usize] {
                s.write_job(w, job, JobRow { flagged: false, ..row });
            }
        }
        s.workers[w].step = Step::TakeSee;
    }

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

    /// Takes the turn. A claim whose lease is over is only suspected the first time.
    pub fn take(&self, s: &mut State, w: usize, seen: HeadSnapshot) {
        let row = s.lock_group(w, Lock::NoKeyUpdate).filter(|row| row.ready == Ready::Due);
        let Some(row) = row else { return self.write_nothing(s, w) };
        let suspected = row.suspect == row.claim || self.is(Mutation::TakeOverWithoutSuspicion);
        let old = row.claim.is_some() && row.claim == s.old_suspect;
        if row.claim.is_some() && (!suspected || old) {
            let ready = if old { Ready::AfterRestart } else { Ready::Grace { by_detector: false } };
            s.write_group(w, GroupRow { suspect: row.claim, ready, ..row });
            return self.write_nothing(s, w);
        }
        s.workers[w].step = Step::HeadSee { seen };
    }

    /// Returns the lowest candidate. Of a free group these are the jobs from `head_id` on, and from
    /// the lowest flag on. Of a claim that is taken over it is its own job.
    fn head_snapshot(&self, rows: &Rows, group: &GroupRow) -> HeadSnapshot {
        let unfinished = rows.unfinished();
        let head = match group.job {
            Some(job) if !self.is(Mutation::ReclaimLowest) => lowest(unfinished & 1 << job),
            _ => self.head(unfinished, rows, group),
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
            return self.write_nothing(s, w);
        }
        let wrong = free && lowest(rows.unfinished()) != Some(head);
        let alone = self.is(Mutation::TakeOverRetires) && rows.unfinished() == 1 << head;
        s.workers[w].step = Step::HeadLock { head, wrong, alone };
    }

    /// Locks the head, checks it once more, and starts it. `head_id` moves only on a free row.
    pub fn start(&self, s: &mut State, w: usize, head: u8, wrong: bool, alone: bool) {
        let Some(group) = s.snapshot(w).group else { return self.write_nothing(s, w) };
        let free = group.claim.is_none();
        let job = s.lock_job(w, head);
        let job = job.filter(|job| job.status.unfinished() && (job.due || !free));
        let Some(job) = job else { return self.write_nothing(s, w) };
        let exhausted = job.counted() >= self.max_attempts;
        if exhausted && !free && self.is(Mutation::TakeOverRetires) {
            s.write_job(w, head, JobRow { status: Status::Failed, ..job });
            s.workers[w].step = Step::RetireFreeLock { drained: alone };
            return;
        }
        let counts = !exhausted && !self.is(Mutation::CountInSettle);
        let attempts = job.attempts + u8::from(counts);
        s.write_job(w, head, JobRow { status: Status::Started, flagged: false, attempts, ..job });
        let token = s.fresh_token();
        s.write_group(
            w,
            GroupRow {
                claim: Some(token),
                job: Some(head),
                suspect: None,
                claimed_by: self.presence.then_some(w as u8),
                head: if free { head } else { group.head },
                ready: Ready::Lease,
                ..group
            },
        );
        s.seen.wrong_head |= wrong;
        let claim = Some(Claim { token, job: head, attempts, exhausted });
        s.workers[w].step = Step::ClaimCommit { claim };
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

    fn write_nothing(&self, s: &mut State, w: usize) {
        if s.has_written(w) {
            s.workers[w].step = Step::ClaimCommit { claim: None };
        } else {
            s.rollback(w);
            s.workers[w].step = Step::Idle;
        }
    }

    pub fn commit_claim(&self, s: &mut State, w: usize, claim: Option<Claim>) {
        s.commit(w);
        s.workers[w].step = Step::Idle;
        let Some(claim) = claim else { return };
        let asked = s.rows.asked & 1 << claim.job != 0;
        s.workers[w].claim = Some(claim);
        s.workers[w].step = match self.hold {
            Hold::Transaction => Step::HoldSee { then: Then::Handle },
            Hold::Lease if asked => Step::HoldSee { then: Then::Record(RunResult::Cancelled) },
            Hold::Lease if claim.exhausted => {
                Step::HoldSee { then: Then::Record(RunResult::Exhausted) }
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
    GroupRow { claim: None, job: None, suspect: None, claimed_by: None, ready: Ready::Due, ..*row }
}

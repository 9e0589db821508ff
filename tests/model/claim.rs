//! Claim: adopt, take the group's turn, look in a new statement, write. One short transaction.

use crate::database::Lock;
use crate::mutation::Mutation;
use crate::protocol::{Hold, Protocol};
use crate::state::{
    Claim, GroupRow, JobRow, Look, Ready, Rows, RunResult, State, Status, Step, Then, each, lowest,
};

const NOTHING_SEEN: Look = Look { head: None, drained: false };

impl Protocol {
    /// The peek, which takes the adopter's lock if jobs are flagged, and with it the snapshot of the flags.
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

    /// A free row that is locked: whoever looks next, looks later. So all its flags may go, if `head_id` is lowered.
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

    /// A claimed row that is shared: its settle has not locked it alone yet, so a later look sees the job. Unless its id is
    /// below `head_id`: then nothing but its flag brings it in.
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

    /// Nobody else has inserted one since it has looked: that takes the adopter's lock.
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

    /// The jobs' rows are locked since their flags were read.
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
            Some(row) if self.is(Mutation::LookInTheStatementThatLocks) => {
                Step::TakeLock { seen: self.look(&rows, &row) }
            }
            Some(_) => Step::TakeLock { seen: NOTHING_SEEN },
            None => return self.write_nothing(s, w),
        };
    }

    /// Other groups are due before this one, and there is no slot left for it.
    pub fn pass_by(&self, s: &mut State, w: usize) -> bool {
        let passes = s.workers[w].step == Step::TakeSee;
        if passes {
            self.write_nothing(s, w);
        }
        passes
    }

    /// Takes the turn. A claim that has not been settled although its lease is over is doubted by a first look.
    pub fn take(&self, s: &mut State, w: usize, seen: Look) {
        let row = s.lock_group(w, Lock::NoKeyUpdate).filter(|row| row.ready == Ready::Due);
        let Some(row) = row else { return self.write_nothing(s, w) };
        let doubted = row.suspect == row.claim || self.is(Mutation::TakeOverInOneLook);
        let old = row.claim.is_some() && row.claim == s.old_doubt;
        if row.claim.is_some() && (!doubted || old) {
            let ready = if old { Ready::Settling } else { Ready::Grace { judged: false } };
            s.write_group(w, GroupRow { suspect: row.claim, ready, ..row });
            return self.write_nothing(s, w);
        }
        s.workers[w].step = Step::LookSee { seen };
    }

    /// The lowest of the candidates: of a free group one from `head_id` on and one from the lowest flag on, of a claim that
    /// is taken over its own job.
    fn look(&self, rows: &Rows, group: &GroupRow) -> Look {
        let unfinished = rows.unfinished();
        let head = match group.job {
            Some(job) if !self.is(Mutation::ReclaimLowest) => lowest(unfinished & 1 << job),
            _ => self.head(unfinished, rows, group),
        };
        Look { head, drained: unfinished == 0 }
    }

    /// The lowest of these that is a candidate.
    pub fn head(&self, of: u8, rows: &Rows, group: &GroupRow) -> Option<u8> {
        let flag = lowest(rows.flagged());
        each(of).find(|id| {
            *id >= group.head
                || flag.is_some_and(|flag| match self.mutation {
                    Some(Mutation::LookOnlyAtFlags) => rows.flagged() & 1 << id != 0,
                    _ => *id >= flag,
                })
        })
    }

    /// Looks with a snapshot that is younger than the group's lock.
    pub fn see_head(&self, s: &mut State, w: usize, seen: Look) {
        let rows = s.snapshot(w);
        let Some(row) = rows.group else { return self.write_nothing(s, w) };
        let look = match self.mutation {
            Some(Mutation::LookInTheStatementThatLocks) => seen,
            _ => self.look(&rows, &row),
        };
        let free = row.claim.is_none();
        let Some(head) = look.head else {
            match (free, look.drained) {
                (true, true) if self.is(Mutation::LookInTheStatementThatLocks) => {
                    s.workers[w].step = Step::RetireFreeLock { drained: true };
                }
                (true, true) => s.workers[w].step = Step::RetireFreeSee,
                // Somebody is changing it.
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
        s.workers[w].step = Step::LookLock { head, wrong, alone };
    }

    /// Locks the head, checks it once more, and writes that it is started. Only on a free row `head_id` moves.
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

    /// The statement that retires looks once more, and locks the row alone. An adopter cannot share it: it is free, and
    /// locked since before the look.
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

/// The group's row as a settle leaves it: the turn is passed on.
pub fn freed(row: &GroupRow) -> GroupRow {
    GroupRow { claim: None, job: None, suspect: None, claimed_by: None, ready: Ready::Due, ..*row }
}

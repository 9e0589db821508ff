//! Adopt: a claim reads a page of flags and locks none of them. It looks each flagged group up, and
//! does what its row asks for. Several adopters work side by side.

use crate::database::Lock;
use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::state::{GroupRow, JobRow, Ready, Rows, State, Status, Step, each, lowest};

/// Returns whether a free row has to be woken by these flags: not by a job that is behind its head.
fn wakes(rows: &Rows, row: &GroupRow, flags: u8) -> bool {
    let asleep = row.ready != Ready::Due;
    let head = each(rows.unfinished()).find(|id| *id >= row.head);
    let behind = |id: u8| {
        head.is_some_and(|head| id > head) && rows.status(id).is_some_and(Status::unfinished)
    };
    each(flags).any(|id| id < row.head || asleep && !behind(id))
}

impl Protocol {
    /// The page of flags, and the group's row in the same snapshot.
    pub fn begin_claim(&self, s: &mut State, w: usize) -> bool {
        let rows = s.snapshot(w);
        let flags = rows.adoptable();
        let due = rows.group.is_some_and(|row| row.ready == Ready::Due);
        let step = match rows.group {
            None if flags != 0 => Some(Step::GroupLock { flags }),
            Some(row) if flags != 0 && row.claim.is_none() && row.ready != Ready::Due => {
                Some(Step::WakeLock { flags, wakes: wakes(&rows, &row, flags) })
            }
            Some(row) if row.claim.is_none() && lowest(flags).is_some_and(|id| id < row.head) => {
                Some(Step::WakeLock { flags, wakes: true })
            }
            Some(row) if row.claim.is_some() && !self.is_receiver(w) => {
                let some = each(flags).any(|id| id >= row.head || self.clears_below_head());
                some.then_some(Step::ShareLock { flags })
            }
            _ => None,
        };
        let Some(step) = step.or(due.then_some(Step::TakeSee)) else { return false };
        s.workers[w].step = step;
        true
    }

    fn clears_below_head(&self) -> bool {
        self.is(Mutation::ClearBelowHead)
    }

    /// Locks a free row. The flags that were seen may all go, since every later claim reads heads
    /// after this lock, and `head_id` is lowered to them.
    pub fn wake_row(&self, s: &mut State, w: usize, flags: u8, wakes: bool) {
        s.workers[w].step = Step::TakeSee;
        let Some(row) = s.lock_group(w, Lock::NoKeyUpdate).filter(|row| row.claim.is_none()) else {
            return;
        };
        let head = row.head.min(lowest(flags).unwrap_or(row.head));
        let wakes = wakes || head < row.head;
        let ready = if wakes && row.halted_by.is_none() { Ready::Due } else { row.ready };
        if (head, ready) != (row.head, row.ready) {
            s.write_group(w, GroupRow { head, ready, ..row });
        }
        // The job that the row sleeps for keeps its flag: a request may have set it since the page
        // was read.
        let asleep = ready != Ready::Due && row.halted_by.is_none();
        let all = !asleep || self.is(Mutation::ClearOfSleeper);
        self.clear(s, w, flags, |id, _| all || id > head);
    }

    /// Shares a claimed row, which only a worker does. Its settle has not locked it alone yet, so a
    /// later read of heads sees the job. A flag below `head_id` stays, because nothing else brings
    /// that job in.
    pub fn share_claimed(&self, s: &mut State, w: usize, flags: u8) {
        s.workers[w].step = Step::TakeSee;
        let row = if self.is(Mutation::ClearWithoutLock) {
            s.snapshot(w).group
        } else {
            s.lock_group(w, Lock::KeyShare).filter(|row| row.claim.is_some())
        };
        let Some(row) = row else { return };
        let from = if self.clears_below_head() { 0 } else { row.head };
        self.clear(s, w, flags, |id, _| id >= from);
    }

    /// No row was visible: tries the group's advisory lock, which it has until its transaction
    /// ends.
    pub fn lock_new(&self, s: &mut State, w: usize, flags: u8) {
        let is_free = s.locks.advisory.is_none_or(|other| other == w as u8);
        if !is_free && !self.is(Mutation::AdoptWithoutLock) {
            s.workers[w].step = Step::TakeSee;
            return;
        }
        s.locks.advisory = Some(w as u8);
        s.workers[w].step = if self.is(Mutation::InsertByOldSnapshot) {
            let rows = s.snapshot(w);
            self.insert_of(&rows, flags)
        } else {
            Step::GroupSee { flags }
        };
    }

    /// A new statement looks once more: another adopter may have inserted the row before the lock
    /// was taken. If there is none, it reads the head.
    pub fn see_new(&self, s: &mut State, w: usize, flags: u8) {
        let rows = s.snapshot(w);
        s.workers[w].step =
            if rows.group.is_some() { Step::TakeSee } else { self.insert_of(&rows, flags) };
    }

    fn insert_of(&self, rows: &Rows, flags: u8) -> Step {
        let unfinished = rows.unfinished();
        let head = self.head(unfinished, rows, &GroupRow { head: u8::MAX, ..GroupRow::default() });
        Step::Insert { flags, head, wrong: head != lowest(unfinished) }
    }

    /// Locks the head and inserts the row already claimed; asleep if the head is not due. If the
    /// head could not be locked, the row is free, and a later claim reads heads again. Then clears
    /// the flags that the row stands for, but for that of the claimed job: it is not written.
    /// Without an unfinished job there is no row, and only the flags of jobs that are over go.
    pub fn insert_new(&self, s: &mut State, w: usize, flags: u8, head: Option<u8>, wrong: bool) {
        let Some(head) = head else {
            self.clear(s, w, flags, |_, job| job.is_over());
            return self.write_nothing(s, w);
        };
        let row = GroupRow { head, ..GroupRow::default() };
        match s.lock_job(w, head) {
            Some(job) if job.status.unfinished() && job.due => {
                s.seen.wrong_head |= wrong;
                if self.leads(w, job, &row) {
                    s.insert_group(w, row);
                    s.workers[w].step = Step::FollowSee { head };
                } else {
                    let row = self.start_job(s, w, (head, 0), job, &row);
                    s.insert_group(w, row);
                }
            }
            Some(job) if job.status.unfinished() => {
                s.insert_group(w, GroupRow { ready: Ready::Sleep(head), ..row });
            }
            _ => s.insert_group(w, row),
        }
        // One that was over may have been retried since the head was read.
        let blind = self.is(Mutation::ClearWithoutCheck);
        let claims = matches!(s.workers[w].step, Step::ClaimCommit { .. } | Step::FollowSee { .. });
        let stands_for = |id: u8| id > head || id == head && !claims;
        self.clear(s, w, flags, |id, job| blind || stands_for(id) || job.is_over());
        if !claims {
            self.write_nothing(s, w);
        }
    }

    /// Clears the flags behind the job that a row sleeps for, by the snapshot of a new statement.
    /// The job itself keeps its flag: it may have been cancelled since it was read.
    pub fn clear_behind(&self, s: &mut State, w: usize, head: u8) {
        let flags = s.snapshot(w).adoptable();
        let all = self.is(Mutation::ClearOfSleeper);
        self.clear(s, w, flags, |id, _| id > head || all && id == head);
        self.write_nothing(s, w);
    }

    /// Clears the flags for whose jobs `may` holds, in their latest versions. Skips the jobs that
    /// another transaction has locked.
    fn clear(&self, s: &mut State, w: usize, flags: u8, may: impl Fn(u8, JobRow) -> bool) {
        for id in each(flags) {
            let has_it = s.locks.jobs[id as usize].is_none_or(|other| other == w as u8);
            s.waited |= !has_it && self.is(Mutation::ClearWithoutSkip);
            let job = s.lock_job(w, id).filter(|job| job.flagged && may(id, *job));
            if let Some(job) = job {
                s.write_job(w, id, JobRow { flagged: false, ..job });
            }
        }
    }
}

//! A look at what is due, in the statements of `end_batches`.

use super::state::{JobState, Look, Seal, State, Step};
use super::{Batch, Mutation};

impl Batch {
    pub fn look(&self, s: &mut State, it: usize) -> bool {
        match s.looks[it].step {
            Step::Idle => return self.read_due(s, it),
            Step::Lock => self.lock(s, it),
            Step::Delete => self.delete(s, it),
            Step::Jobs => self.end_if_over(s, it),
            Step::Commit => self.commit(s, it),
        }
        true
    }

    /// Locks what is due, and skips what another look has.
    fn read_due(&self, s: &mut State, it: usize) -> bool {
        let others = s.looks.iter().fold(0, |due, look| due | look.due);
        let due = s.due & !others;
        let early = self.is(Mutation::ReadJobsBeforeWhatIsDue);
        let look = s.looks[it];
        if early && look.read.is_none() {
            s.looks[it].read = Some(s.read_jobs());
            return true;
        }
        s.looks[it] =
            if due == 0 { Look::default() } else { Look { step: Step::Lock, due, ..look } };
        due != 0 || early
    }

    /// Locks the batch's row alone, if it is sealed and has not ended; skips it if a join, a seal
    /// or another look has it.
    fn lock(&self, s: &mut State, it: usize) {
        let early = self.is(Mutation::ReadJobsBeforeTheLock);
        if early && s.looks[it].read.is_none() {
            s.looks[it].read = Some(s.read_jobs());
            return;
        }
        let joined = s.is_joined()
            && !self.is(Mutation::LookBesideJoins)
            && !self.is(Mutation::JoinWithoutLock);
        let looked =
            s.looks.iter().any(|look| look.has_batch) && !self.is(Mutation::LookWithoutLock);
        let free = !joined && !looked && s.seal != Seal::Open;
        s.looks[it].has_batch = free && self.is_sought(s);
        s.looks[it].step = Step::Delete;
    }

    fn is_sought(&self, s: &State) -> bool {
        (s.seal == Seal::Sealed || self.is(Mutation::LookBeforeTheSeal)) && !s.ended
    }

    fn delete(&self, s: &mut State, it: usize) {
        let keeps = !s.looks[it].has_batch && self.is_sought(s);
        let all = self.is(Mutation::DeleteAll);
        let due = s.due;
        let look = &mut s.looks[it];
        look.due |= if all { due } else { 0 };
        look.keeps = keeps && !self.is(Mutation::ForgetTheLocked);
        look.step = if look.has_batch { Step::Jobs } else { Step::Commit };
    }

    /// Reads jobs in a new statement.
    fn end_if_over(&self, s: &mut State, it: usize) {
        let read = s.looks[it].read.unwrap_or_else(|| s.read_jobs());
        let fails = self.may_fail && read.unsuccessful && !self.is(Mutation::AnyEndIsASuccess);
        let failed = |job: &super::Job| job.state == JobState::Ended { succeeded: false };
        let look = &mut s.looks[it];
        look.ends = !read.unfinished && !fails;
        look.fails = Some(!read.unfinished && fails);
        look.step = Step::Commit;
        s.early |= look.ends && s.jobs.iter().any(failed);
    }

    fn commit(&self, s: &mut State, it: usize) {
        let look = s.looks[it];
        s.due &= !look.due;
        s.append(u8::from(look.keeps));
        s.failed = look.fails.unwrap_or(s.failed);
        s.ended |= look.ends;
        s.follow_ups = 2.min(s.follow_ups + u8::from(look.ends));
        s.looks[it] = Look::default();
    }
}

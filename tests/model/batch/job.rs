//! Joins, ends of jobs, and the seal.

use super::state::{JobState, Seal, State};
use super::{Batch, Mutation};

impl Batch {
    /// Reads the batch. A job that finds it sealed is refused.
    pub fn read_to_join(&self, s: &mut State, job: usize) -> bool {
        s.jobs[job].state = if s.seal == Seal::Sealed { JobState::Gone } else { JobState::Read };
        true
    }

    /// Locks the batch's row, shared with other joins and a seal; waits for a look, which is short.
    /// It sees an end of the batch that was committed meanwhile, and no seal.
    pub fn join(&self, s: &mut State, job: usize) -> bool {
        let locks = !self.is(Mutation::JoinWithoutLock);
        if locks && s.looks.iter().any(|look| look.has_batch) {
            return false;
        }
        s.waited |= self.is(Mutation::SealLocksAlone) && s.seal == Seal::Open;
        let refused = s.ended && locks && !self.is(Mutation::EndOfNoKey);
        s.jobs[job].state = if refused { JobState::Gone } else { JobState::Joined };
        true
    }

    pub fn open_seal(&self, s: &mut State) -> bool {
        let free = s.looks.iter().all(|look| !look.has_batch);
        s.waited |= self.is(Mutation::SealLocksAlone) && s.is_joined();
        if free {
            s.seal = Seal::Open;
        }
        free
    }

    /// Begins the transaction that ends a job, for good.
    pub fn open_end(&self, s: &mut State, job: usize, succeeds: bool) -> bool {
        let others = s.jobs.iter().enumerate().filter(|(other, _)| *other != job);
        let last = self.is(Mutation::LastEndLooks)
            && others
                .map(|it| it.1.state)
                .all(|state| !matches!(state, JobState::Unfinished | JobState::Ending { .. }));
        if self.is(Mutation::DueBeforeTheEnd) {
            s.append(1);
        }
        s.jobs[job].state = JobState::Ending { succeeds, last };
        true
    }

    /// Commits it, with its row of `batch_end` and what is due.
    pub fn commit_end(&self, s: &mut State, job: usize) -> bool {
        let JobState::Ending { succeeds, last } = s.jobs[job].state else { return false };
        s.jobs[job].state = JobState::Ended { succeeded: succeeds };
        let first = s.jobs[job].end.filter(|_| self.is(Mutation::FirstEndCounts));
        s.jobs[job].end = Some(first.unwrap_or(succeeds));
        let appends = if self.is(Mutation::LastEndLooks) {
            last
        } else {
            !self.is(Mutation::DueBeforeTheEnd)
        };
        s.append(u8::from(appends));
        true
    }
}

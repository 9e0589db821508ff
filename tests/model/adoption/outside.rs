//! The writes of a claim's commit, and the settles of claimed groups.

use super::Adoption;
use super::state::{Group, JobState, State, bits, each};

impl Adoption {
    /// A started job keeps its flag, as that of a busy group. If flags do not stay, it is ended at
    /// once as far as they go: its group is claimed until it settles.
    pub fn commit(&self, s: &mut State, session: usize) {
        let (jobs, groups) = s.seen_by(session);
        let claim = s.claims[session];
        (s.jobs, s.groups) = (jobs, groups);
        for group in each(claim.started) {
            let head = bits(self.waiting(s, group).take(1));
            if self.flags_stay {
                s.running |= head;
            } else {
                each(head).for_each(|job| s.jobs[job] = JobState::Ended);
            }
        }
        s.claims[session] = <_>::default();
        // The upkeep of a receive, which skips what others have locked.
        for group in each(claim.met & !claim.started & !s.locked_by_others(session)) {
            let waits = self.waiting(s, group).next().is_some();
            if waits
                && matches!(s.groups[group], Group::NoRow | Group::Due)
                && !self.startable(group)
            {
                s.groups[group] = Group::Asleep;
            }
        }
    }

    /// Ends the job that ran, and passes the turn on, or retires the group; not while a claim has
    /// its row locked. The job of a group that was busy from the first is outside of the model.
    pub fn settle(&self, s: &mut State, group: usize) {
        if s.claims.iter().any(|claim| claim.locked & 1 << group != 0) {
            return;
        }
        for job in each(s.running).filter(|job| self.jobs[*job].group == group) {
            s.jobs[job] = JobState::Ended;
            s.running &= !(1 << job);
        }
        let waits = self.waiting(s, group).next().is_some();
        s.groups[group] = if waits { Group::Due } else { Group::NoRow };
    }

    /// Returns the unfinished jobs of a group, as committed.
    fn waiting(&self, s: &State, group: usize) -> impl Iterator<Item = usize> {
        (0..self.jobs.len())
            .filter(move |job| self.jobs[*job].group == group && s.jobs[*job].waits())
    }
}

//! What a claim's commit writes, and the settles of claimed groups.

use super::Adoption;
use super::state::{Group, JobState, State, each};

impl Adoption {
    /// The started job is ended at once as far as flags go: its group is claimed until it settles.
    pub fn commit(&self, s: &mut State, session: usize) {
        let (jobs, groups) = s.seen_by(session);
        let claim = s.claims[session];
        (s.jobs, s.groups) = (jobs, groups);
        for group in each(claim.started) {
            let head = (0..self.jobs.len())
                .find(|job| self.jobs[*job].group == group && s.jobs[*job].waits());
            if let Some(head) = head {
                s.jobs[head] = JobState::Ended;
            }
        }
        s.claims[session] = <_>::default();
    }

    /// Passes the turn on, or retires the group; not while a claim has its row locked.
    pub fn settle(&self, s: &mut State, group: usize) {
        if s.claims.iter().any(|claim| claim.locked & 1 << group != 0) {
            return;
        }
        let waits =
            (0..self.jobs.len()).any(|job| self.jobs[job].group == group && s.jobs[job].waits());
        s.groups[group] = if waits { Group::Due } else { Group::NoRow };
    }
}

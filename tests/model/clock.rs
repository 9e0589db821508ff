//! Time, as events: a lease is over, a grace is over, a delay is over.
//!
//! A lease may end at any moment. The protocol asks one thing of real time: **a loss is noticed
//! before the group is freed**. A grace begins with a suspicion. Before it ends, a handler that
//! lost its hold is dropped, and one that kept it has cleared the suspicion (the next extension
//! does). So a grace does not end while such a handler runs. The one exception is a process that
//! was told of the server's shutdown: it keeps its handlers, since no failure detector can run.

use crate::protocol::{Hold, Protocol};
use crate::state::{GroupRow, JobRow, Ready, RunResult, State, Step, Then, WORKERS};

impl Protocol {
    pub fn lease_ends(&self, s: &mut State) -> bool {
        let Some(row) = s.rows.group.filter(|row| row.ready == Ready::Lease) else { return false };
        let mut leased = (0..WORKERS).filter(|w| self.hold_of(*w) == Hold::Lease);
        if leased.any(|w| s.workers[w].claim.map(|claim| claim.token) == row.claim) {
            // Its process extends it at a third of its time.
            if s.faults.lapses == 0 {
                return false;
            }
            s.faults.lapses -= 1;
        }
        // A receiver knows when its visibility ends, and stops for it.
        for worker in s.workers.iter_mut().filter(|worker| row.strict && worker.handler) {
            if worker.claim.map(|claim| claim.token) == row.claim {
                worker.handler = false;
                worker.step = Step::HoldSee { then: Then::Record(RunResult::Error) };
            }
        }
        s.rows.group = Some(GroupRow { ready: Ready::Due, ..row });
        true
    }

    pub fn grace_ends(&self, s: &mut State) -> bool {
        let Some(row) = s.rows.group else { return false };
        let by_detector = match row.ready {
            Ready::Grace { by_detector } => by_detector,
            Ready::AfterRestart if s.all_back => false,
            _ => return false,
        };
        for w in 0..WORKERS {
            let worker = &s.workers[w];
            let claimed = worker.claim.map(|claim| claim.token) == row.claim;
            let keeps = matches!(worker.step, Step::Held);
            let waits_for_the_server = by_detector && worker.knows_down;
            if worker.handler && claimed && !keeps && !waits_for_the_server {
                return false;
            }
        }
        s.rows.group = Some(GroupRow { ready: Ready::Due, ..row });
        true
    }

    /// The back-off of a retried job is over; its group's sleep ends with it.
    pub fn delay_ends(&self, s: &mut State, job: u8) -> bool {
        let Some(row) = s.rows.jobs[job as usize].filter(|row| !row.due) else { return false };
        s.rows.jobs[job as usize] = Some(JobRow { due: true, ..row });
        true
    }

    /// Ends a sleep whose time is over.
    pub fn wake(&self, s: &mut State) {
        let over = |job: u8| s.rows.jobs[job as usize].is_none_or(|row| row.due);
        if let Some(row) = &mut s.rows.group
            && matches!(row.ready, Ready::Sleep(job) if over(job))
        {
            row.ready = Ready::Due;
        }
    }
}

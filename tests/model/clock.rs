//! Time, as events: a lease is over, a grace is over, a delay is over.
//!
//! A lease may end at any moment. What the protocol asks of real time is this alone: **losing is noticed before freeing**.
//! A handler that lost what keeps its group is dropped before the grace ends that somebody's doubt began; one that did not
//! lose it has cleared the doubt by then (the next extension does). So a grace does not end while such a handler runs,
//! with one exception: a process that was told that the server goes down keeps its handlers, since nobody can judge.

use crate::protocol::{Hold, Protocol};
use crate::state::{GroupRow, JobRow, Ready, State, Step, WORKERS};

impl Protocol {
    pub fn lease_ends(&self, s: &mut State) -> bool {
        let Some(row) = s.rows.group.filter(|row| row.ready == Ready::Lease) else { return false };
        if self.hold == Hold::Lease
            && s.workers.iter().any(|w| w.claim.map(|claim| claim.token) == row.claim)
        {
            // Its process extends it at a third of its time.
            if s.faults.lapses == 0 {
                return false;
            }
            s.faults.lapses -= 1;
        }
        s.rows.group = Some(GroupRow { ready: Ready::Due, ..row });
        true
    }

    pub fn grace_ends(&self, s: &mut State) -> bool {
        let Some(row) = s.rows.group else { return false };
        let judged = match row.ready {
            Ready::Grace { judged } => judged,
            Ready::Settling if s.settled => false,
            _ => return false,
        };
        for w in 0..WORKERS {
            let worker = &s.workers[w];
            let claimed = worker.claim.map(|claim| claim.token) == row.claim;
            let keeps = matches!(worker.step, Step::Held { .. });
            let waits_for_the_server = judged && worker.knows_down;
            if worker.handler && claimed && !keeps && !waits_for_the_server {
                return false;
            }
        }
        s.rows.group = Some(GroupRow { ready: Ready::Due, ..row });
        true
    }

    /// A retried job's back-off is over; its group's sleep ends with it.
    pub fn delay_ends(&self, s: &mut State, job: u8) -> bool {
        let Some(row) = s.rows.jobs[job as usize].filter(|row| !row.due) else { return false };
        s.rows.jobs[job as usize] = Some(JobRow { due: true, ..row });
        true
    }

    /// A group does not sleep until a time that is over.
    pub fn wake(&self, s: &mut State) {
        let over = |job: u8| s.rows.jobs[job as usize].is_none_or(|row| row.due);
        if let Some(row) = &mut s.rows.group
            && matches!(row.ready, Ready::Sleep(job) if over(job))
        {
            row.ready = Ready::Due;
        }
    }
}

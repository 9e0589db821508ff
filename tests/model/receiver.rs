//! Receivers: claims and settles like those of workers, in transactions that stay open as long as
//! they like, and with several calls in one.

use crate::protocol::Protocol;
use crate::state::{State, Status, Step, Then};

impl Protocol {
    pub fn is_receiver(&self, w: usize) -> bool {
        self.receivers & 1 << w != 0
    }

    /// Receives in the transaction of an ack.
    pub fn receive_again(&self, s: &mut State, w: usize) -> bool {
        let acked = self.is_receiver(w) && s.workers[w].step == Step::SettleCommit;
        acked && self.begin_claim(s, w)
    }

    /// Acks a job in the transaction that has received it.
    pub fn ack_at_once(&self, s: &mut State, w: usize) -> bool {
        let Step::ClaimCommit { claim: Some(claim) } = s.workers[w].step else { return false };
        let rows = s.snapshot(w);
        let Some(job) = rows.jobs[claim.job as usize].filter(|_| self.is_receiver(w)) else {
            return false;
        };
        s.write_job(w, claim.job, job.ended(Status::Succeeded, !claim.exhausted));
        self.end_turn(s, w, rows.unfinished() & !(1 << claim.job) == 0);
        true
    }

    /// Rolls back, or loses the session: as if it had called nothing since the last commit.
    pub fn roll_back(&self, s: &mut State, w: usize) -> bool {
        let open = matches!(s.workers[w].step, Step::SettleCommit | Step::ClaimCommit { .. });
        if open && self.is_receiver(w) {
            s.rollback(w);
            s.workers[w].step = s.workers[w].without_transaction();
            return true;
        }
        false
    }
}

impl crate::state::Worker {
    /// The step to take when the transaction of a claim is gone, perhaps with an ack before it.
    pub fn without_transaction(&self) -> Step {
        match self.claim {
            Some(_) => Step::HoldSee { then: Then::Record(self.unrecorded) },
            None => Step::Idle,
        }
    }
}

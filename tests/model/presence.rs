//! Presence: each process shows by an advisory lock that it lives; whoever finds the lock free may doubt its claims.

use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::state::{GroupRow, Ready, State, Step, WORKERS, Worker};

impl Protocol {
    /// A process whose presence session was lost takes a new lock and announces it. A judge that has its row is waited for.
    pub fn come_back(&self, s: &mut State, w: usize) -> bool {
        let judged = s.workers.iter().any(|other| other.judging == Some(w as u8));
        let worker = &mut s.workers[w];
        if !self.presence || worker.present || worker.step == Step::Dead || judged {
            return false;
        }
        worker.present = true;
        worker.knows_down = false;
        s.rows.processors[w] = s.start;
        true
    }

    /// A judge locks the other process's row and finds its lock free. After a restart all locks are: who announced itself
    /// on another server is judged only when everybody has had the time to come back.
    pub fn judge(&self, s: &mut State, w: usize) -> bool {
        let other = WORKERS - 1 - w;
        let judge = s.workers[w];
        let may = s.rows.processors[other] == s.start
            || s.settled
            || self.is(Mutation::JudgeAfterRestart);
        let claims = s
            .rows
            .group
            .is_some_and(|row| row.claimed_by == Some(other as u8) && row.suspect != row.claim);
        let sits = s.workers.iter().all(|worker| worker.judging.is_none());
        if !judge.present || s.workers[other].present || !may || !claims || !sits {
            return false;
        }
        s.workers[w].judging = Some(other as u8);
        true
    }

    /// The judge's next statement doubts the dead one's claims, but what a transaction holds, and commits.
    pub fn doubt(&self, s: &mut State, w: usize) -> bool {
        let Some(other) = s.workers[w].judging.take() else { return false };
        let doubted = |row: &GroupRow| row.claimed_by == Some(other) && row.suspect != row.claim;
        if let Some(row) = s.rows.group.filter(doubted).filter(|_| s.locks.group.is_none()) {
            let ready = Ready::Grace { judged: true };
            s.rows.group = Some(GroupRow { suspect: row.claim, ready, ..row });
        }
        true
    }

    /// The server has been up for long: whoever lives has come back to it and extended its leases, or has dropped its
    /// handlers.
    pub fn settle_down(&self, s: &mut State) -> bool {
        let suspect = s.rows.group.and_then(|row| row.suspect);
        let back = |worker: &Worker| {
            let doubted = suspect.is_some() && worker.claim.map(|claim| claim.token) == suspect;
            !worker.handler || worker.present && !doubted
        };
        let matters = self.presence || s.old_doubt.is_some();
        if !matters || s.settled || !s.workers.iter().all(back) {
            return false;
        }
        s.settled = true;
        s.old_doubt = None;
        for worker in &mut s.workers {
            worker.knows_down = false;
        }
        true
    }
}

//! Presence: each process shows by an advisory lock that it lives. If that lock is free, a failure
//! detector suspects the claims of its process.

use crate::mutation::Mutation;
use crate::protocol::Protocol;
use crate::state::{GroupRow, Ready, State, Step, Worker};

impl Protocol {
    /// A process whose presence session was lost takes a new lock and announces it. It waits for a
    /// failure detector that has its row locked.
    pub fn come_back(&self, s: &mut State, w: usize) -> bool {
        let found_dead = s.workers.iter().any(|other| other.found_dead == Some(w as u8));
        let worker = &mut s.workers[w];
        if !self.presence || worker.present || worker.step == Step::Dead || found_dead {
            return false;
        }
        worker.present = true;
        worker.knows_down = false;
        s.rows.processors[w] = s.start;
        true
    }

    /// A failure detector locks the other process's row and finds its lock free. After a restart
    /// all locks are free. So a process that announced itself before it is suspected only when
    /// every process has had the time to come back.
    pub fn find_dead(&self, s: &mut State, w: usize) -> bool {
        let other = self.workers - 1 - w;
        let detector = s.workers[w];
        let may = s.rows.processors[other] == s.start
            || s.all_back
            || self.is(Mutation::SuspectRightAfterRestart);
        let claims = s
            .rows
            .group
            .is_some_and(|row| row.claimed_by == Some(other as u8) && row.suspect != row.claim);
        let single = s.workers.iter().all(|worker| worker.found_dead.is_none());
        if !detector.present || s.workers[other].present || !may || !claims || !single {
            return false;
        }
        s.workers[w].found_dead = Some(other as u8);
        true
    }

    /// The failure detector's next statement suspects the dead process's claims, except those that
    /// a transaction holds, and commits.
    pub fn suspect(&self, s: &mut State, w: usize) -> bool {
        let Some(other) = s.workers[w].found_dead.take() else { return false };
        let suspected = |row: &GroupRow| row.claimed_by == Some(other) && row.suspect != row.claim;
        if let Some(row) = s.rows.group.filter(suspected).filter(|_| s.locks.group.is_none()) {
            let ready = Ready::Grace { by_detector: true };
            s.rows.group = Some(GroupRow { suspect: row.claim, ready, ..row });
        }
        true
    }

    /// The server has been up for long: a process that lives has come back to it and extended its
    /// leases, or has dropped its handlers.
    pub fn come_all_back(&self, s: &mut State) -> bool {
        let suspect = s.rows.group.and_then(|row| row.suspect);
        let back = |worker: &Worker| {
            let suspected = suspect.is_some() && worker.claim.map(|claim| claim.token) == suspect;
            !worker.handler || worker.present && !suspected
        };
        let matters = self.presence || s.old_suspect.is_some();
        if !matters || s.all_back || !s.workers.iter().all(back) {
            return false;
        }
        s.all_back = true;
        s.old_suspect = None;
        for worker in &mut s.workers {
            worker.knows_down = false;
        }
        true
    }
}

//! Workers that do the same are alike: of the states that differ only in which worker is which, one
//! is explored. Jobs that have ended are alike too, if no request brings them back.

use crate::database::{GroupLock, Locks};
use crate::operator::Request;
use crate::protocol::Protocol;
use crate::state::{JobRow, State, Status, each};

/// The locks of one session.
fn locked(locks: &Locks, session: usize) -> (u8, Option<bool>, bool, bool) {
    let own = session as u8;
    let jobs = locks.jobs.iter().enumerate().filter(|(_, lock)| **lock == Some(own));
    (
        jobs.fold(0, |bits, (id, _)| bits | 1 << id),
        locks.group.filter(|lock| lock.session == own).map(|lock| lock.alone),
        locks.shared & 1 << own != 0,
        locks.advisory == Some(own),
    )
}

impl State {
    fn swap_workers(&mut self, a: usize, b: usize) {
        self.workers.swap(a, b);
        self.transactions.swap(a, b);
        let (a, b) = (a as u8, b as u8);
        let swapped = |session: u8| match session {
            it if it == a => b,
            it if it == b => a,
            it => it,
        };
        let Locks { jobs, group, shared, advisory } = &mut self.locks;
        for job in jobs {
            *job = job.map(swapped);
        }
        *group = group.map(|lock| GroupLock { session: swapped(lock.session), ..lock });
        *advisory = advisory.map(swapped);
        let (of_a, of_b) = (*shared >> a & 1, *shared >> b & 1);
        *shared = *shared & !(1 << a) & !(1 << b) | of_a << b | of_b << a;
    }

    /// Forgets how jobs have ended, and after how many attempts. Nothing asks for that any more.
    pub fn forget(&mut self) {
        let ended = |row: &JobRow| row.is_over() && row.status != Status::Moved;
        for id in each(self.rows.which(|_, row| ended(row))) {
            let flagged = self.rows.flagged() & 1 << id != 0;
            let status = Status::Succeeded;
            self.rows.jobs[id as usize] = Some(JobRow {
                status,
                flagged,
                due: true,
                attempts: 0,
                forgiven: 0,
                parked_with: None,
            });
            self.seen.starts[id as usize] = 0;
            self.seen.before[id as usize] = 0;
        }
        for claim in self.workers.iter_mut().filter_map(|worker| worker.claim.as_mut()) {
            claim.attempts = 0;
        }
    }

    pub fn sort_workers(&mut self, workers: usize) {
        for end in (1..workers).rev() {
            for a in 0..end {
                let (this, next) = (&self.workers[a], &self.workers[a + 1]);
                let order = this.cmp(next).then_with(|| {
                    let order = self.transactions[a].cmp(&self.transactions[a + 1]);
                    order.then_with(|| locked(&self.locks, a).cmp(&locked(&self.locks, a + 1)))
                });
                if order.is_gt() {
                    self.swap_workers(a, a + 1);
                }
            }
        }
    }
}

impl Protocol {
    /// The same, with workers that are alike; as it is if they differ in what their rows say.
    pub fn with_symmetry(&self) -> Self {
        let alike = self.receivers == 0 || self.receivers == (1 << self.workers) - 1;
        let again = self.requests.iter().any(|request| {
            matches!(request, Request::Retry(_) | Request::Redrive | Request::RedriveParked)
        });
        Self { symmetric: alike && !self.presence, forgetful: !again, ..self.clone() }
    }
}

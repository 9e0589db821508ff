//! Workers that do the same are alike: of the states that differ only in which worker is which, one
//! is explored. Jobs that have ended are alike too, if no request brings them back.

use crate::database::{GroupLock, Locks, Written};
use crate::operator::Request;
use crate::protocol::Protocol;
use crate::state::{Claim, GroupRow, JOBS, JobRow, OperatorStep, State, Status, Step};

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

/// Leaves what still counts of a job that has ended.
fn forget_end(row: &mut JobRow) {
    let flagged = row.flagged;
    *row = JobRow { status: Status::Succeeded, flagged, due: true, ..JobRow::default() };
}

/// New numbers of tokens, in the order in which they are met.
#[derive(Default)]
struct Renamed {
    before: [u8; 16],
    count: u8,
}

impl Renamed {
    fn of(&mut self, token: u8) -> u8 {
        let known = self.before[..self.count as usize].iter().position(|it| *it == token);
        known.map_or_else(
            || {
                self.before[self.count as usize] = token;
                self.count += 1;
                self.count - 1
            },
            |number| number as u8,
        )
    }

    fn in_row(&mut self, row: Option<&mut GroupRow>) {
        let Some(row) = row else { return };
        row.claim = row.claim.map(|token| self.of(token));
        row.suspect = row.suspect.map(|token| self.of(token));
    }

    fn in_claim(&mut self, claim: Option<&mut Claim>) {
        let Some(claim) = claim else { return };
        claim.token = self.of(claim.token);
    }
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

    /// Forgets how jobs have ended, and after how many attempts: nothing asks for that any more,
    /// but of jobs that may come back. Tokens get the lowest numbers.
    pub fn forget(&mut self, over: u8) {
        for id in 0..JOBS {
            if over & 1 << id != 0
                && let Some(row) = &mut self.rows.jobs[id]
                && !matches!(row.status, Status::Moved | Status::Parked)
            {
                forget_end(row);
                self.seen.starts[id] = 0;
                self.seen.before[id] = 0;
                // An adopter that clears its flag.
                let rows = self.transactions.iter_mut().filter_map(|own| own.jobs[id].as_mut());
                rows.for_each(forget_end);
            }
        }
        let mut renamed = Renamed::default();
        self.old_suspect = self.old_suspect.map(|token| renamed.of(token));
        renamed.in_row(self.rows.group.as_mut());
        for transaction in &mut self.transactions {
            if let Written::Row(row) = &mut transaction.group {
                renamed.in_row(Some(row));
            }
        }
        for worker in &mut self.workers {
            renamed.in_claim(worker.claim.as_mut());
            if let Step::ClaimCommit { claim } = &mut worker.step {
                renamed.in_claim(claim.as_mut());
            }
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
    /// The same, with workers that are alike, unless they differ in what their rows say, and with
    /// jobs that are alike when they have ended.
    pub fn with_symmetry(&self) -> Self {
        let alike = self.receivers == 0 || self.receivers == (1 << self.workers) - 1;
        let forgetful = self.mutation.is_none();
        Self { symmetric: alike && !self.presence, forgetful, ..self.clone() }
    }

    /// Returns the jobs that a request may yet queue again.
    pub fn may_come_back(&self, s: &State) -> u8 {
        use OperatorStep::{RetryLock, RetryUnhalt, UnitLock};
        if matches!(s.operator, RetryLock { .. } | RetryUnhalt { .. } | UnitLock { .. }) {
            return u8::MAX;
        }
        let open = self.requests.iter().enumerate().filter(|(it, _)| s.requested & 1 << it == 0);
        let again = open.map(|(_, request)| match request {
            Request::Retry(job) => 1 << job,
            Request::Redrive | Request::RedriveParked => u8::MAX,
            _ => 0,
        });
        again.fold(0, |all, jobs| all | jobs)
    }
}

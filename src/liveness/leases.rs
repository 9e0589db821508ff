//! The claims of this process that leases keep.
//!
//! A lease is extended at a third of its time. A handler is told to stop when its lease may have run out, or when others
//! may take this process for dead: in both cases before a take-over's grace is over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::liveness::sessions::Signals;
use crate::store::LeasedClaim;

/// How far into the grace of a take-over a handler may run: its lease ended, and nobody may have noticed yet.
const OVERTIME: Duration = Duration::from_millis(750);
/// A lease that could not be extended is tried again after this.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Leases {
    table: Mutex<Table>,
    /// A claim came whose lease has to be extended sooner than the others.
    pub(crate) came: Notify,
    /// Others know by which lock this process shows that it lives, or that it has none.
    pub(crate) announced: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Others may have taken this process for dead.
    uncertain: bool,
    /// This process is seen to live, and so sees who doubts it.
    present: bool,
    kept: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    claim: LeasedClaim,
    lease: Duration,
    /// By this process's clock, from before the statement that gave the lease was sent.
    until: Instant,
    extend_at: Instant,
    signals: Signals,
    /// Jobs behind the one that runs which somebody asked to cancel.
    cancelled: HashSet<i64>,
}

/// A lease that is extended until this is dropped.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    leases: Arc<Leases>,
    key: u64,
    pub(crate) signals: Signals,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.leases.table().kept.remove(&self.key);
    }
}

impl LeaseGuard {
    /// Whether a handler may begin. A process that was frozen since its claim has not heard that its lease is over.
    pub(crate) fn stands(&self, now: Instant) -> bool {
        let table = self.leases.table();
        let entry = table.kept.get(&self.key);
        entry.is_some_and(|e| now < e.until + OVERTIME && !e.signals.lost.is_cancelled())
    }

    /// From now on it is for the next job of the turn.
    pub(crate) fn turn_to(&mut self, job: i64) {
        self.signals.cancel = CancellationToken::new();
        if let Some(entry) = self.leases.table().kept.get_mut(&self.key) {
            entry.claim.job = job;
            entry.claim.behind.retain(|behind| *behind != job);
            entry.signals = self.signals.clone();
            if entry.cancelled.remove(&job) {
                entry.signals.cancel.cancel();
            }
        }
    }
}

impl Leases {
    /// Keeps a claim whose lease was asked for at `asked_at`.
    pub(crate) fn keep(
        self: &Arc<Self>,
        claim: LeasedClaim,
        lease: Duration,
        asked_at: Instant,
    ) -> LeaseGuard {
        let signals = Signals::default();
        let entry = Entry {
            claim,
            lease,
            until: asked_at + lease,
            extend_at: asked_at + lease / 3,
            signals: signals.clone(),
            cancelled: HashSet::new(),
        };
        let mut table = self.table();
        let key = table.next;
        table.next += 1;
        table.kept.insert(key, entry);
        drop(table);
        self.came.notify_one();
        LeaseGuard { leases: Arc::clone(self), key, signals }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics under the lock; a poisoned map is still a map.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims to be extended now, with those that somebody doubts; or all.
    pub(crate) fn due(&self, now: Instant, suspected: &[Uuid], all: bool) -> Vec<LeasedClaim> {
        let table = self.table();
        let due = |e: &&Entry| all || e.extend_at <= now || suspected.contains(&e.claim.token);
        table.kept.values().filter(due).map(|e| e.claim.clone()).collect()
    }

    /// When the next lease is to be extended.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.table().kept.values().map(|e| e.extend_at).min()
    }

    /// What became of an extension that was asked for at `asked_at`: extended, standing but skipped, or lost.
    pub(crate) fn extended(
        &self,
        asked_at: Instant,
        asked_for: &[LeasedClaim],
        extended: &HashSet<Uuid>,
        still_claimed: &HashSet<Uuid>,
    ) {
        let asked_for: HashSet<Uuid> = asked_for.iter().map(|claim| claim.token).collect();
        for entry in self.table().kept.values_mut() {
            let token = &entry.claim.token;
            if extended.contains(token) {
                entry.until = asked_at + entry.lease;
                entry.extend_at = asked_at + entry.lease / 3;
            } else if still_claimed.contains(token) {
                entry.extend_at = asked_at + AGAIN;
            } else if asked_for.contains(token) {
                entry.signals.lost.cancel();
            }
        }
    }

    /// Tells handlers to stop whose claims do not stand any more, of those that were asked for.
    pub(crate) fn check(&self, asked_for: &[LeasedClaim], still_claimed: &HashSet<Uuid>) {
        let asked_for: HashSet<Uuid> = asked_for.iter().map(|claim| claim.token).collect();
        let lost = |token: &Uuid| asked_for.contains(token) && !still_claimed.contains(token);
        for entry in self.table().kept.values().filter(|e| lost(&e.claim.token)) {
            entry.signals.lost.cancel();
        }
    }

    /// Tells the handlers of these jobs that somebody asked to cancel them.
    pub(crate) fn cancel(&self, jobs: &[i64]) {
        for entry in self.table().kept.values_mut() {
            if jobs.contains(&entry.claim.job) {
                entry.signals.cancel.cancel();
            }
            entry.cancelled.extend(entry.claim.behind.iter().filter(|job| jobs.contains(job)));
        }
    }

    /// The tokens of all claims that it keeps, if whoever is doubted by mistake sees that in time.
    pub(crate) fn known(&self) -> Option<Vec<Uuid>> {
        let table = self.table();
        table.present.then(|| table.kept.values().map(|e| e.claim.token).collect())
    }

    /// Whether to claim at all: what was claimed by a process that others take for dead would be taken over at once.
    pub(crate) fn may_claim(&self) -> bool {
        !self.table().uncertain
    }

    /// Tells handlers to stop whose lease ran out, or all if nobody can be sure any more that this process is seen.
    pub(crate) fn expire(&self, now: Instant, certain_until: Option<Instant>) {
        let uncertain = certain_until.is_some_and(|until| now >= until);
        let mut table = self.table();
        table.uncertain = uncertain;
        table.present = certain_until.is_some() && !uncertain;
        for entry in table.kept.values() {
            if uncertain || now >= entry.until + OVERTIME {
                entry.signals.lost.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_over_before_its_handler_began_is_lost() {
        let leases = Arc::new(Leases::default());
        let claim = LeasedClaim {
            job: 1,
            ungrouped: false,
            behind: Vec::new(),
            token: Uuid::from_u128(1),
            lease: 1.0,
        };
        let (lease, asked_at) = (Duration::from_secs(1), Instant::now());
        let kept = leases.keep(claim, lease, asked_at);
        assert!(kept.stands(asked_at + lease));
        assert!(!kept.stands(asked_at + lease + OVERTIME), "the process was frozen meanwhile");
        kept.signals.lost.cancel();
        assert!(!kept.stands(asked_at));
    }
}

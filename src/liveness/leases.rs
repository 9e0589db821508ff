//! The claims of this process that leases keep.
//!
//! A lease is extended at a third of its time. A handler is told to stop when its lease may have
//! run out, or when other processes may suspect this one: in both cases before the grace of a
//! take-over ends.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::liveness::sessions::Signals;
use crate::store::LeasedClaim;

/// How far into the grace of a take-over a handler may run: its lease has ended, and no process may
/// have noticed yet.
const OVERTIME: Duration = Duration::from_millis(750);
/// Delay after an extension that skipped a locked row.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Leases {
    table: Mutex<Table>,
    /// Notified of a claim whose first extension may come before the others'.
    pub(crate) new_claim: Notify,
    /// Cancelled once a heartbeat has ended after this process announced its presence lock, or that
    /// it has none.
    pub(crate) announced: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Other processes may have suspected this one.
    uncertain: bool,
    /// The presence of this process is proven, so it learns of a suspicion in time.
    present: bool,
    /// The options that the presence's session was opened with; `None` before the first one.
    options: Option<Arc<PgConnectOptions>>,
    /// The start of the server that the presence was proven on last.
    server: Option<DateTime<Utc>>,
    /// How often that was another one, or the same after a restart.
    moves: u64,
    entries: HashMap<u64, LeaseEntry>,
}

#[derive(Debug)]
struct LeaseEntry {
    claim: LeasedClaim,
    lease: Duration,
    /// By this process's clock, counted from before the statement that gave the lease was sent.
    until: Instant,
    extend_at: Instant,
    signals: Signals,
    /// Followers of the running job with a request to cancel.
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
        self.leases.table().entries.remove(&self.key);
    }
}

impl LeaseGuard {
    /// Returns whether a handler may begin. A process that was frozen since its claim has not heard
    /// that its lease ended.
    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        let table = self.leases.table();
        let entry = table.entries.get(&self.key);
        entry.is_some_and(|e| now < e.until + OVERTIME && !e.signals.lost.is_cancelled())
    }

    /// Makes the lease that of the next job of the turn.
    pub(crate) fn pass_to(&mut self, job: i64) {
        self.signals.cancel = CancellationToken::new();
        if let Some(entry) = self.leases.table().entries.get_mut(&self.key) {
            entry.claim.job = job;
            entry.claim.followers.retain(|behind| *behind != job);
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
        let entry = LeaseEntry {
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
        table.entries.insert(key, entry);
        drop(table);
        self.new_claim.notify_one();
        LeaseGuard { leases: Arc::clone(self), key, signals }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics under the lock; a poisoned map is still a map.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the claims to extend now, suspected ones among them; or all.
    pub(crate) fn due(&self, now: Instant, suspected: &[Uuid], all: bool) -> Vec<LeasedClaim> {
        let table = self.table();
        let due = |e: &&LeaseEntry| all || e.extend_at <= now || suspected.contains(&e.claim.token);
        table.entries.values().filter(due).map(|e| e.claim.clone()).collect()
    }

    /// Returns when the next lease is to be extended.
    pub(crate) fn next_extension(&self) -> Option<Instant> {
        self.table().entries.values().map(|e| e.extend_at).min()
    }

    /// Applies an extension that was sent at `asked_at`: each claim was extended, skipped but
    /// stands, or lost.
    pub(crate) fn apply_extension(
        &self,
        asked_at: Instant,
        asked_for: &[LeasedClaim],
        extended: &HashSet<Uuid>,
        still_claimed: &HashSet<Uuid>,
    ) {
        let asked_for: HashSet<Uuid> = asked_for.iter().map(|claim| claim.token).collect();
        for entry in self.table().entries.values_mut() {
            let token = &entry.claim.token;
            if extended.contains(token) {
                entry.until = asked_at + entry.lease;
                entry.extend_at = asked_at + entry.lease / 3;
            } else if still_claimed.contains(token) {
                entry.extend_at = asked_at + RETRY;
            } else if asked_for.contains(token) {
                entry.signals.lost.cancel();
            }
        }
    }

    /// Stops the handlers of those claims among `asked_for` that do not stand any more.
    pub(crate) fn stop_lost(&self, asked_for: &[LeasedClaim], still_claimed: &HashSet<Uuid>) {
        let asked_for: HashSet<Uuid> = asked_for.iter().map(|claim| claim.token).collect();
        let lost = |token: &Uuid| asked_for.contains(token) && !still_claimed.contains(token);
        for entry in self.table().entries.values().filter(|e| lost(&e.claim.token)) {
            entry.signals.lost.cancel();
        }
    }

    /// Passes requests to cancel on to the handlers of these jobs.
    pub(crate) fn cancel(&self, jobs: &[i64]) {
        for entry in self.table().entries.values_mut() {
            if jobs.contains(&entry.claim.job) {
                entry.signals.cancel.cancel();
            }
            entry.cancelled.extend(entry.claim.followers.iter().filter(|job| jobs.contains(job)));
        }
    }

    /// Returns the tokens of all leased claims; `None` while the presence is unproven, since a
    /// wrong suspicion could not be cleared in time.
    pub(crate) fn proven_tokens(&self) -> Option<Vec<Uuid>> {
        let table = self.table();
        table.present.then(|| table.entries.values().map(|e| e.claim.token).collect())
    }

    /// Returns whether to claim at all through connections with these options. Claims of a
    /// suspected process would be taken over at once, and the presence extends nothing on a server
    /// that it has not been led to yet.
    pub(crate) fn may_claim(&self, options: &Arc<PgConnectOptions>) -> bool {
        let table = self.table();
        let there = table.options.as_ref().is_none_or(|there| Arc::ptr_eq(there, options));
        there && !table.uncertain
    }

    /// The presence is shown by a session with these options from now on.
    pub(crate) fn extend_through(&self, options: &Arc<PgConnectOptions>) {
        self.table().options = Some(Arc::clone(options));
    }

    /// The presence is proven on the server that started then.
    pub(crate) fn are_on(&self, server: DateTime<Utc>) {
        let mut table = self.table();
        if table.server.replace(server).is_some_and(|before| before != server) {
            table.moves += 1;
        }
    }

    /// Returns how often the claims came to another server, or to one that started again. It may
    /// lack the newest commits of the one before.
    pub(crate) fn moves(&self) -> u64 {
        self.table().moves
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table().entries.is_empty()
    }

    /// Waits for `work`, which may extend leases, and stops the handlers whose leases run out
    /// meanwhile: `work` may take a second, which the grace of a take-over does not have.
    pub(crate) async fn expire_during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let end = self.next_end();
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                    self.table().stop_ended(Instant::now());
                }
            }
        }
    }

    /// Returns when the next lease counts as run out; `None` if no handler has one.
    fn next_end(&self) -> Option<Instant> {
        let table = self.table();
        let kept = table.entries.values().filter(|e| !e.signals.lost.is_cancelled());
        kept.map(|e| e.until + OVERTIME).min()
    }

    /// Stops handlers whose lease ran out; all of them once the presence has been unproven for too
    /// long.
    pub(crate) fn expire(&self, now: Instant, certain_until: Option<Instant>) {
        let uncertain = certain_until.is_some_and(|until| now >= until);
        let mut table = self.table();
        table.uncertain = uncertain;
        table.present = certain_until.is_some() && !uncertain;
        if uncertain {
            table.entries.values().for_each(|entry| entry.signals.lost.cancel());
        }
        table.stop_ended(now);
    }
}

impl Table {
    fn stop_ended(&self, now: Instant) {
        for entry in self.entries.values().filter(|e| now >= e.until + OVERTIME) {
            entry.signals.lost.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(token: u128) -> LeasedClaim {
        LeasedClaim {
            job: 1,
            ungrouped: false,
            followers: Vec::new(),
            token: Uuid::from_u128(token),
            lease: 1.0,
        }
    }

    /// A check of the presence that began before may take a second.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ends_during_a_check_stops_its_handler_at_once() {
        let leases = Arc::new(Leases::default());
        let (lease, begun) = (Duration::from_secs(1), Instant::now());
        let ends = leases.keep(claim(1), lease, begun);
        let extended = leases.keep(claim(2), lease, begun);
        let stopped = async {
            ends.signals.lost.cancelled().await;
            Instant::now() - begun
        };
        let check = leases.expire_during(async {
            sleep_until(begun + lease).await;
            let all = [claim(1), claim(2)];
            let token = |claim: &LeasedClaim| HashSet::from([claim.token]);
            leases.apply_extension(begun + lease, &all, &token(&all[1]), &token(&all[0]));
            sleep_until(begun + 2 * lease).await;
        });
        let (after, ()) = tokio::join!(stopped, check);
        assert_eq!(after, lease + OVERTIME);
        assert!(!extended.signals.lost.is_cancelled());
        assert_eq!(leases.next_end(), Some(begun + 2 * lease + OVERTIME));
    }

    #[test]
    fn a_lease_that_ended_before_its_handler_begins_stops_it() {
        let leases = Arc::new(Leases::default());
        let (lease, asked_at) = (Duration::from_secs(1), Instant::now());
        let guard = leases.keep(claim(1), lease, asked_at);
        assert!(guard.may_begin(asked_at + lease));
        assert!(!guard.may_begin(asked_at + lease + OVERTIME), "the process was frozen meanwhile");
        guard.signals.lost.cancel();
        assert!(!guard.may_begin(asked_at));
    }
}

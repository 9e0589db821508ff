//! Jobs that were claimed for slots which are about to be free: while handlers are short, a slot that waited for the next
//! claim after each of them would be idle for most of the time.
//!
//! A job waits here for some milliseconds. One that does not come to run within [`STALE`] goes back as if it had not been
//! claimed, and so does at once one that would lose more than its first attempt if this process died.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::attempt::connection::SlotConnection;
use crate::attempt::turn::{ClaimedTurn, TurnEnd};
use crate::liveness::leases::LeaseGuard;
use crate::slots::queue_slots::{SlotGuard, SlotUsage};
use crate::store::HeldJob;
use crate::worker::release::{UnstartedTurn, release};

/// How long one waits before it goes back. Its claim stands for half a second, or its lease is extended.
const STALE: Duration = Duration::from_millis(100);
/// Of how many jobs that were claimed last none may have been one that may not wait, or waited in vain.
const SURE: usize = 32;

/// A claimed job for a slot.
pub(in crate::worker) struct PrefetchedTurn {
    pub(in crate::worker) run: ClaimedTurn,
    pub(in crate::worker) known: HashMap<i64, HeldJob>,
    /// If it is kept by a lease.
    pub(in crate::worker) guard: Option<LeaseGuard>,
}

/// The jobs of a worker that wait for its slots.
pub(in crate::worker) struct Prefetch {
    line: Mutex<Buffer<PrefetchedTurn>>,
    slots: Arc<SlotUsage>,
    wake: Arc<Notify>,
    pushed: Notify,
    giving_back: TaskTracker,
}

/// Jobs in the order in which they are to run.
struct Buffer<T> {
    waiting: VecDeque<Entry<T>>,
    /// How many claimed jobs in a row could wait.
    safe_streak: usize,
    /// The last claim left more: slots go on with what waits, and leave it to the worker else.
    more: bool,
    claim: NextClaim,
    /// How many are to wait behind a claim.
    room: usize,
    /// Jobs have ended in slots that went on, since the last claim did; whether one passed its group's turn on.
    ended: Option<bool>,
}

/// The next claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextClaim {
    Later,
    /// A slot has given its connection to it.
    Next,
    OnItsWay,
}

struct Entry<T> {
    job: T,
    /// Since before it was claimed.
    since: Instant,
    may_wait: bool,
}

impl<T> Default for Buffer<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            safe_streak: 0,
            more: false,
            claim: NextClaim::Later,
            room: 0,
            ended: None,
        }
    }
}

impl<T> Buffer<T> {
    fn claims(&mut self, quick_ends: usize) -> usize {
        self.claim = NextClaim::OnItsWay;
        self.room = self.room_at(quick_ends);
        self.room.saturating_sub(self.waiting.len())
    }

    /// How many may wait where so many quick jobs have just ended: they do not wait longer than that took, if slots come free
    /// as quickly as they did.
    fn room_at(&self, quick_ends: usize) -> usize {
        if self.safe_streak < SURE { 0 } else { quick_ends }
    }

    fn claimed(&mut self, more: bool) -> Option<bool> {
        (self.claim, self.more) = (NextClaim::Later, more);
        self.ended.take()
    }

    fn push(&mut self, job: T, since: Instant, may_wait: Option<bool>) {
        match may_wait {
            Some(true) => self.safe_streak = self.safe_streak.saturating_add(1),
            Some(false) => self.safe_streak = 0,
            None => {}
        }
        let may_wait = may_wait == Some(true);
        let at = if may_wait {
            self.waiting.len()
        } else {
            self.waiting.iter().take_while(|before| !before.may_wait).count()
        };
        self.waiting.insert(at, Entry { job, since, may_wait });
    }

    fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|entry| entry.job)
    }

    fn next(&mut self, passed: bool, claims: bool) -> Option<T> {
        if !self.more {
            return None;
        }
        if claims && self.claim == NextClaim::Later && self.waiting.len() <= self.room / 2 {
            self.claim = NextClaim::Next;
            return None;
        }
        let next = self.pop()?;
        self.ended = Some(passed || self.ended.unwrap_or_default());
        Some(next)
    }

    fn take_stale(&mut self, now: Instant) -> Vec<T> {
        let stale = self.take(|entry| entry.since + STALE <= now);
        if !stale.is_empty() {
            self.safe_streak = 0;
        }
        stale
    }

    fn take(&mut self, which: impl Fn(&Entry<T>) -> bool) -> Vec<T> {
        let (taken, rest): (VecDeque<_>, _) = self.waiting.drain(..).partition(which);
        self.waiting = rest;
        taken.into_iter().map(|entry| entry.job).collect()
    }
}

impl Prefetch {
    /// For these slots, of a worker that is woken by this.
    pub(in crate::worker) fn new(slots: Arc<SlotUsage>, wake: Arc<Notify>) -> Self {
        Self {
            line: Mutex::default(),
            slots,
            wake,
            pushed: Notify::new(),
            giving_back: TaskTracker::new(),
        }
    }

    fn line(&self) -> MutexGuard<'_, Buffer<PrefetchedTurn>> {
        // Nothing panics under the lock.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim begins: how many jobs it may bring beyond those that slots are free for.
    pub(in crate::worker) fn claims(&self) -> usize {
        self.line().claims(self.slots.quick_ends(Instant::now()))
    }

    /// Whether it is time to claim, though no slot is free.
    pub(in crate::worker) fn runs_low(&self) -> bool {
        let line = self.line();
        let room = line.room_at(self.slots.quick_ends(Instant::now()));
        room > 0 && line.waiting.len() <= room / 2
    }

    /// The claim has ended, and left more or not. Says whether jobs have ended meanwhile in slots that went on, and whether one
    /// of them passed its group's turn on.
    pub(in crate::worker) fn claimed(&self, more: bool) -> Option<bool> {
        self.line().claimed(more)
    }

    /// Puts a job in line that a claim brought which was asked for at `since`: behind the others, unless it may not wait.
    pub(in crate::worker) fn push(&self, waiting: PrefetchedTurn, since: Instant) {
        let may_wait = waiting.run.claim.may_wait;
        self.line().push(waiting, since, may_wait);
        self.pushed.notify_one();
    }

    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.line().waiting.is_empty()
    }

    /// How many slots, with their connections, are to be left for the next claim.
    pub(in crate::worker) fn reserved(&self) -> usize {
        usize::from(self.line().claim == NextClaim::Next)
    }

    /// The next one, for a slot that is free.
    pub(in crate::worker) fn pop(&self) -> Option<PrefetchedTurn> {
        self.line().pop()
    }

    /// Gives those back that no slot is free for, and that may not wait.
    pub(in crate::worker) fn give_back_impatient(&self) {
        self.give_back(self.line().take(|entry| !entry.may_wait));
    }

    /// Gives back what has waited for too long; for ever.
    pub(in crate::worker) async fn give_back_stale(&self) {
        loop {
            let first = self.line().waiting.iter().map(|entry| entry.since + STALE).min();
            match first {
                Some(at) => sleep_until(at).await,
                None => self.pushed.notified().await,
            }
            self.give_back(self.line().take_stale(Instant::now()));
        }
    }

    /// Gives all back; slots take no more.
    pub(in crate::worker) async fn close(&self) {
        let rest = {
            let mut line = self.line();
            line.more = false;
            line.take(|_| true)
        };
        self.give_back(rest);
        self.giving_back.close();
        self.giving_back.wait().await;
    }

    fn give_back(&self, waiting: Vec<PrefetchedTurn>) {
        if !waiting.is_empty() {
            let unbegun = |PrefetchedTurn { run, guard, .. }| UnstartedTurn { run, guard };
            let claims = waiting.into_iter().map(unbegun).collect();
            let wake = Arc::clone(&self.wake);
            self.giving_back.spawn(async move {
                release(claims).await;
                // A slot may have come free meanwhile, and looked in vain.
                wake.notify_one();
            });
        }
    }
}

/// Runs a job in its slot, and then those that wait, while the worker's last claim left more.
///
/// Says how they ended, and gives back the connection, if that can be used again.
pub(in crate::worker) async fn run(
    prefetch: Arc<Prefetch>,
    mut next: PrefetchedTurn,
    mut conn: SlotConnection,
    mut slot: SlotGuard,
) -> (TurnEnd, Option<SlotConnection>) {
    let stop = next.run.context.stop.clone();
    let mut passed = false;
    let (end, conn) = loop {
        let run = next.run.open(&prefetch.slots);
        let (end, left) = run.into_end(next.known, conn).await;
        passed |= end != TurnEnd::Drained;
        let Some(left) = left.filter(|_| !stop.is_cancelled()) else { break (end, None) };
        let waiting = prefetch.line().next(end != TurnEnd::Drained, left.claims);
        match waiting {
            Some(waiting) => {
                slot.begin_next_job();
                (next, conn) = (waiting, left);
            }
            None => break (end, Some(left)),
        }
    };
    drop(slot);
    // One before may have passed its group's turn on.
    (if passed && end == TurnEnd::Drained { TurnEnd::Finished } else { end }, conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(8);

    /// A line that jobs have come to, all of which could wait.
    fn line(now: Instant) -> Buffer<u32> {
        let mut line = Buffer { more: true, ..Buffer::default() };
        for n in 0..32 {
            line.push(n, now, Some(true));
            line.pop();
        }
        line
    }

    #[test]
    fn as_many_jobs_are_prefetched_as_lately_ended() {
        let mut line = line(Instant::now());
        assert_eq!(line.claims(8), 8);
        line.push(1, Instant::now(), Some(true));
        assert_eq!(line.claims(8), 7);
        assert_eq!(line.claims(0), 0);
    }

    #[test]
    fn a_job_that_may_not_wait_is_next_and_stops_prefetching() {
        let now = Instant::now();
        let mut line = line(now);
        line.push(1, now, Some(true));
        line.push(2, now, Some(false));
        line.push(3, now, Some(false));
        assert_eq!(line.claims(8), 0);
        assert_eq!([line.pop(), line.pop(), line.pop()], [Some(2), Some(3), Some(1)]);
        for n in 0..31 {
            line.push(n, now, Some(true));
        }
        assert_eq!(line.claims(64), 0);
        line.push(31, now, Some(true));
        assert_eq!(line.claims(64), 32);
    }

    #[test]
    fn slots_take_prefetched_jobs_and_one_of_them_claims() {
        let now = Instant::now();
        let mut line = line(now);
        line.claims(8);
        (0..8).for_each(|n| line.push(n, now, Some(true)));
        // Another claim is on its way.
        assert_eq!(line.next(false, true), Some(0));
        assert_eq!(line.claimed(true), Some(false));
        assert_eq!(line.next(false, true), Some(1));
        assert_eq!([line.next(false, false), line.next(false, false)], [Some(2), Some(3)]);
        assert_eq!(line.next(false, true), None);
        assert_eq!(line.next(false, true), Some(4), "only one does");
        assert_eq!(line.next(true, false), Some(5));
        assert_eq!(line.claimed(false), Some(true), "one passed a turn on");
        assert_eq!(line.next(false, false), None);
        assert_eq!(line.claimed(true), None);
    }

    #[test]
    fn a_job_of_unknown_urgency_is_next_and_keeps_prefetching() {
        let now = Instant::now();
        let mut line = line(now);
        line.push(1, now, Some(true));
        line.push(2, now, None);
        assert_eq!(line.claims(8), 6);
        assert_eq!([line.pop(), line.pop()], [Some(2), Some(1)]);
    }

    #[test]
    fn a_job_that_may_not_wait_is_taken_if_no_slot_is_free() {
        let now = Instant::now();
        let mut line = line(now);
        line.push(1, now, Some(true));
        line.push(2, now, Some(false));
        assert_eq!(line.take(|entry| !entry.may_wait), [2]);
        assert_eq!(line.pop(), Some(1));
    }

    #[test]
    fn a_stale_prefetched_job_is_released_and_stops_prefetching() {
        let start = Instant::now();
        let mut line = line(start);
        line.push(1, start, Some(true));
        line.push(2, start + SOON, Some(true));
        assert!(line.take_stale(start + STALE - SOON).is_empty());
        assert_eq!(line.claims(8), 6);
        assert_eq!(line.take_stale(start + STALE), [1]);
        assert_eq!(line.claims(8), 0);
        assert_eq!(line.pop(), Some(2));
    }
}

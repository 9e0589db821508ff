//! Prefetch: jobs that are claimed before a slot is free.
//!
//! Problem: a slot whose job has ended waits for the claim on its way, and then for the next claim:
//! with quick handlers, most of its time. Idea: while claims leave more, a claim brings more jobs
//! than slots are free: as many as ended in the last 20 ms and took less than that, 64 at most (500
//! with followers).
//!
//! By transaction each slot has its connection, and takes the next prefetched job itself. When half
//! of them are left, the slot whose connection claims gives it to the next claim. Under a lease the
//! worker starts the next job as soon as a handler ends, and extends leases while they wait.
//!
//! After [`STALE`], and at a shutdown, prefetched jobs are released (`release.rs`): no attempt
//! counted, no history, first in line. A job that was begun before, has one attempt or may expire
//! is released at once if no slot is free. Then no job is prefetched until [`SURE`] others have
//! come. So the death of the process costs a prefetched job one attempt; its last one only in the
//! milliseconds before its release. A turn waits, and is released, as a whole. A queue with a limit
//! in flight or with shared slots does not prefetch, nor does a thorough claim.
//!
//! Tests: `prefetch::*`, `interleavings::prefetch`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::attempt::connection::SlotConnection;
use crate::attempt::release::{UnstartedTurn, release};
use crate::attempt::turn::{ClaimedTurn, TurnEnd};
use crate::liveness::leases::LeaseGuard;
use crate::slots::queue_slots::{SlotGuard, SlotUsage};
use crate::store::HeldJob;

/// Bounds the wait of a prefetched job. Its claim stands for 0.5 s by transaction, and a lease is
/// extended.
const STALE: Duration = Duration::from_millis(100);
/// Prefetch only after this many consecutive claims that were safe to prefetch.
const SURE: usize = 32;

/// A claimed turn that waits for a slot.
pub(in crate::worker) struct PrefetchedTurn {
    pub(in crate::worker) run: ClaimedTurn,
    pub(in crate::worker) known: HashMap<i64, HeldJob>,
    /// Extends the lease; `None` by transaction.
    pub(in crate::worker) guard: Option<LeaseGuard>,
}

/// The prefetched jobs of a worker.
pub(in crate::worker) struct Prefetch {
    buffer: Mutex<Buffer<PrefetchedTurn>>,
    slots: Arc<SlotUsage>,
    wake: Arc<Notify>,
    pushed: Notify,
    releasing: TaskTracker,
}

/// Prefetched jobs in the order in which they are to run.
struct Buffer<T> {
    waiting: VecDeque<Entry<T>>,
    /// The number of consecutive claimed jobs that could wait.
    safe_streak: usize,
    /// True if the last claim left more. Only then do slots take the next job themselves.
    more: bool,
    claim: NextClaim,
    /// The number of jobs that are to wait after a claim.
    room: usize,
    /// `Some` if jobs have ended since the last claim in slots that took the next job; true if one
    /// passed its group's turn on.
    ended: Option<bool>,
}

/// The state of the next claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextClaim {
    Later,
    /// A slot has given its connection to the claim.
    Reserved,
    Running,
}

struct Entry<T> {
    job: T,
    /// When its claim was sent.
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
    fn begin_claim(&mut self, quick_ends: usize) -> usize {
        self.claim = NextClaim::Running;
        self.room = self.room_at(quick_ends);
        self.room.saturating_sub(self.waiting.len())
    }

    /// Returns how many jobs may wait after `quick_ends`: they wait no longer than these ends took,
    /// if slots come free as quickly.
    fn room_at(&self, quick_ends: usize) -> usize {
        if self.safe_streak < SURE { 0 } else { quick_ends }
    }

    fn end_claim(&mut self, more: bool) -> Option<bool> {
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

    fn next(&mut self, passed: bool, may_claim: bool) -> Option<T> {
        if !self.more {
            return None;
        }
        if may_claim && self.claim == NextClaim::Later && self.waiting.len() <= self.room / 2 {
            self.claim = NextClaim::Reserved;
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
    /// Returns an empty buffer for these slots, of a worker that `wake` wakes.
    pub(in crate::worker) fn new(slots: Arc<SlotUsage>, wake: Arc<Notify>) -> Self {
        Self {
            buffer: Mutex::default(),
            slots,
            wake,
            pushed: Notify::new(),
            releasing: TaskTracker::new(),
        }
    }

    fn buffer(&self) -> MutexGuard<'_, Buffer<PrefetchedTurn>> {
        // No code panics under the lock.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a claim. Returns how many jobs it may bring beyond the free slots.
    pub(in crate::worker) fn begin_claim(&self) -> usize {
        self.buffer().begin_claim(self.slots.quick_ends(Instant::now()))
    }

    /// Returns whether to claim though no slot is free.
    pub(in crate::worker) fn runs_low(&self) -> bool {
        let buffer = self.buffer();
        let room = buffer.room_at(self.slots.quick_ends(Instant::now()));
        room > 0 && buffer.waiting.len() <= room / 2
    }

    /// Ends a claim, which left `more` or not. Returns whether a job that ended meanwhile passed
    /// its group's turn on; `None` if no job ended in a slot that took the next job.
    pub(in crate::worker) fn end_claim(&self, more: bool) -> Option<bool> {
        self.buffer().end_claim(more)
    }

    /// Adds a turn whose claim was sent at `since`: behind the others, unless it may not wait.
    pub(in crate::worker) fn push(&self, waiting: PrefetchedTurn, since: Instant) {
        let may_wait = waiting.run.claim.may_wait;
        self.buffer().push(waiting, since, may_wait);
        self.pushed.notify_one();
    }

    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.buffer().waiting.is_empty()
    }

    /// Returns the number of slots, with their connections, that are reserved for the next claim.
    pub(in crate::worker) fn reserved(&self) -> usize {
        usize::from(self.buffer().claim == NextClaim::Reserved)
    }

    /// Returns the next turn for a free slot.
    pub(in crate::worker) fn pop(&self) -> Option<PrefetchedTurn> {
        self.buffer().pop()
    }

    /// Releases the turns that may not wait.
    pub(in crate::worker) fn release_urgent(&self) {
        self.release(self.buffer().take(|entry| !entry.may_wait));
    }

    /// Releases turns that have waited for [`STALE`]; never returns.
    pub(in crate::worker) async fn release_stale(&self) {
        loop {
            let first = self.buffer().waiting.iter().map(|entry| entry.since + STALE).min();
            match first {
                Some(at) => sleep_until(at).await,
                None => self.pushed.notified().await,
            }
            self.release(self.buffer().take_stale(Instant::now()));
        }
    }

    /// Releases all turns. Slots take no more.
    pub(in crate::worker) async fn close(&self) {
        let rest = {
            let mut buffer = self.buffer();
            buffer.more = false;
            buffer.take(|_| true)
        };
        self.release(rest);
        self.releasing.close();
        self.releasing.wait().await;
    }

    fn release(&self, waiting: Vec<PrefetchedTurn>) {
        if !waiting.is_empty() {
            let unstarted = |PrefetchedTurn { run, guard, .. }| UnstartedTurn { run, guard };
            let claims = waiting.into_iter().map(unstarted).collect();
            let wake = Arc::clone(&self.wake);
            self.releasing.spawn(async move {
                release(claims).await;
                // A slot may have come free meanwhile and found no job.
                wake.notify_one();
            });
        }
    }
}

/// Runs a turn in its slot, and then prefetched turns while the worker's last claim left more.
///
/// Returns how the last one ended, and the connection if it can be used again.
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
        let waiting = prefetch.buffer().next(end != TurnEnd::Drained, left.has_claimed);
        match waiting {
            Some(waiting) => {
                slot.begin_next_job();
                (next, conn) = (waiting, left);
            }
            None => break (end, Some(left)),
        }
    };
    drop(slot);
    // A turn before may have passed its group's turn on.
    (if passed && end == TurnEnd::Drained { TurnEnd::Finished } else { end }, conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(8);

    /// Returns a buffer after 32 jobs that could all wait.
    fn buffer(now: Instant) -> Buffer<u32> {
        let mut buffer = Buffer { more: true, ..Buffer::default() };
        for n in 0..32 {
            buffer.push(n, now, Some(true));
            buffer.pop();
        }
        buffer
    }

    #[test]
    fn as_many_jobs_are_prefetched_as_lately_ended() {
        let mut buffer = buffer(Instant::now());
        assert_eq!(buffer.begin_claim(8), 8);
        buffer.push(1, Instant::now(), Some(true));
        assert_eq!(buffer.begin_claim(8), 7);
        assert_eq!(buffer.begin_claim(0), 0);
    }

    #[test]
    fn a_job_that_may_not_wait_is_next_and_stops_prefetching() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.push(1, now, Some(true));
        buffer.push(2, now, Some(false));
        buffer.push(3, now, Some(false));
        assert_eq!(buffer.begin_claim(8), 0);
        assert_eq!([buffer.pop(), buffer.pop(), buffer.pop()], [Some(2), Some(3), Some(1)]);
        for n in 0..31 {
            buffer.push(n, now, Some(true));
        }
        assert_eq!(buffer.begin_claim(64), 0);
        buffer.push(31, now, Some(true));
        assert_eq!(buffer.begin_claim(64), 32);
    }

    #[test]
    fn slots_take_prefetched_jobs_and_one_of_them_claims() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.begin_claim(8);
        (0..8).for_each(|n| buffer.push(n, now, Some(true)));
        // Another claim is on its way.
        assert_eq!(buffer.next(false, true), Some(0));
        assert_eq!(buffer.end_claim(true), Some(false));
        assert_eq!(buffer.next(false, true), Some(1));
        assert_eq!([buffer.next(false, false), buffer.next(false, false)], [Some(2), Some(3)]);
        assert_eq!(buffer.next(false, true), None);
        assert_eq!(buffer.next(false, true), Some(4), "only one does");
        assert_eq!(buffer.next(true, false), Some(5));
        assert_eq!(buffer.end_claim(false), Some(true), "one passed a turn on");
        assert_eq!(buffer.next(false, false), None);
        assert_eq!(buffer.end_claim(true), None);
    }

    #[test]
    fn a_job_of_unknown_urgency_is_next_and_keeps_prefetching() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.push(1, now, Some(true));
        buffer.push(2, now, None);
        assert_eq!(buffer.begin_claim(8), 6);
        assert_eq!([buffer.pop(), buffer.pop()], [Some(2), Some(1)]);
    }

    #[test]
    fn a_job_that_may_not_wait_is_taken_if_no_slot_is_free() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.push(1, now, Some(true));
        buffer.push(2, now, Some(false));
        assert_eq!(buffer.take(|entry| !entry.may_wait), [2]);
        assert_eq!(buffer.pop(), Some(1));
    }

    #[test]
    fn a_stale_prefetched_job_is_released_and_stops_prefetching() {
        let start = Instant::now();
        let mut buffer = buffer(start);
        buffer.push(1, start, Some(true));
        buffer.push(2, start + SOON, Some(true));
        assert!(buffer.take_stale(start + STALE - SOON).is_empty());
        assert_eq!(buffer.begin_claim(8), 6);
        assert_eq!(buffer.take_stale(start + STALE), [1]);
        assert_eq!(buffer.begin_claim(8), 0);
        assert_eq!(buffer.pop(), Some(2));
    }
}

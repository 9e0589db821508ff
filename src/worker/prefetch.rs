//! Prefetch: jobs that are claimed before a slot is free.
//!
//! Problem: a slot whose job has ended waits for the claim on its way, and then for the next claim:
//! with quick handlers, most of its time. Idea: while claims leave more, a claim brings more jobs
//! than slots are free: as many as are expected to come free in 20 ms, by the jobs that took less
//! than 100 ms and ended lately; 128 at most (500 with followers). Under a lease all slots wait for
//! one connection's claims, and a large one costs less for each job: 256 after many claims that
//! left more. One that leaves nothing brings it back to 64: the next one has groups to take then.
//!
//! The next claim comes when half of them are left, or too few for slots whose handlers end
//! together. By transaction each slot has its connection, and takes the next prefetched job itself
//! (`slot.rs`); the slot whose connection claims gives it to the next claim. Under a lease the
//! worker starts the next job as soon as a handler ends, and extends leases while they wait.
//!
//! After [`STALE`], and at a shutdown, prefetched jobs are released (`release.rs`): no attempt
//! counted, no history, first in line. A job that was begun before, has one attempt or may expire
//! is released at once if no slot is free. Then no job is prefetched until [`SURE`] others have
//! come. So the death of the process costs a prefetched job one attempt; its last one only in the
//! milliseconds before its release. A turn waits, and is released, as a whole. A queue with a limit
//! in flight, with a rate or with shared slots does not prefetch.
//!
//! Tests: `prefetch::*`, `interleavings::prefetch`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::attempt::release::{UnstartedTurn, release};
use crate::attempt::turn::ClaimedTurn;
use crate::job::queue_options::QueueOptions;
use crate::liveness::leases::LeaseGuard;
use crate::slots::queue_slots::{COUNTED, SlotUsage};
use crate::store::LoadedJob;

/// Bounds the wait of a prefetched job. Its claim stands for 0.5 s by transaction, and a lease is
/// extended.
const STALE: Duration = Duration::from_millis(100);
/// Prefetch only after this many consecutive claims that were safe to prefetch.
const SURE: usize = 32;

/// A claimed turn that waits for a slot.
pub(crate) struct PrefetchedTurn {
    pub(crate) run: ClaimedTurn,
    pub(crate) jobs: VecDeque<LoadedJob>,
    /// Extends the lease; `None` by transaction.
    pub(crate) guard: Option<LeaseGuard>,
}

/// The prefetched jobs of a worker.
pub(crate) struct Prefetch {
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
    /// True if the last claim left more.
    more: bool,
    claim: NextClaim,
    /// The number of jobs that are to wait after a claim.
    room: usize,
    /// The number of slots.
    slots: usize,
    /// Bounds the room. It grows while claims leave more, within `limits`.
    limit: usize,
    /// The least and the greatest limit.
    limits: (usize, usize),
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

/// The next step of a slot after its turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    Turn(T),
    /// The slot gives its connection to the next claim.
    Claim,
    Nothing,
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
            slots: 0,
            limit: COUNTED,
            limits: (COUNTED, COUNTED),
            ended: None,
        }
    }
}

impl<T> Buffer<T> {
    fn begin_claim(&mut self, ends: usize) -> usize {
        self.claim = NextClaim::Running;
        self.room = self.room_at(ends);
        self.room.saturating_sub(self.waiting.len())
    }

    /// Returns how many jobs may wait if so many slots are expected to come free in 20 ms.
    fn room_at(&self, ends: usize) -> usize {
        if self.safe_streak < SURE { 0 } else { ends.min(self.limit) }
    }

    /// Returns whether to claim: half of `room` is left, or too few for all slots, whose handlers
    /// may end together.
    fn is_low(&self, room: usize) -> bool {
        self.waiting.len() <= (room / 2).max(self.slots.min(room * 3 / 4))
    }

    fn end_claim(&mut self, more: bool) -> Option<bool> {
        (self.claim, self.more) = (NextClaim::Later, more);
        let (least, most) = self.limits;
        self.limit = if more { (self.limit + 8).min(most) } else { least };
        self.ended.take()
    }

    fn push(&mut self, job: T, since: Instant, may_wait: bool) {
        self.safe_streak = if may_wait { self.safe_streak.saturating_add(1) } else { 0 };
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

    /// Returns the next job if it may be held ahead.
    fn pop_ahead(&mut self) -> Option<T> {
        self.waiting.front().filter(|entry| entry.may_wait)?;
        self.pop()
    }

    fn next(&mut self, may_claim: bool) -> Next<T> {
        // A group whose turn was passed on may be claimed too.
        let more = self.more || self.ended == Some(true);
        if more && may_claim && self.claim == NextClaim::Later && self.is_low(self.room) {
            self.claim = NextClaim::Reserved;
            return Next::Claim;
        }
        self.pop().map_or(Next::Nothing, Next::Turn)
    }

    fn record_end(&mut self, passed: bool) {
        self.ended = Some(passed || self.ended.unwrap_or_default());
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
    pub(crate) fn new(queue: &QueueOptions, slots: Arc<SlotUsage>, wake: Arc<Notify>) -> Self {
        let leased = queue.hold.is_leased();
        let limits = if leased { (COUNTED / 2, COUNTED * 2) } else { (COUNTED, COUNTED) };
        let limit = limits.0;
        let buffer = Buffer { slots: queue.concurrency, limit, limits, ..Buffer::default() };
        Self {
            buffer: Mutex::new(buffer),
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
    pub(crate) fn begin_claim(&self) -> usize {
        self.buffer().begin_claim(self.slots.expected_ends(Instant::now()))
    }

    /// Returns whether to claim though no slot is free.
    pub(crate) fn runs_low(&self) -> bool {
        let buffer = self.buffer();
        let room = buffer.room_at(self.slots.expected_ends(Instant::now()));
        room > 0 && buffer.is_low(room)
    }

    /// Ends a claim, which left `more` or not. Returns whether a job that ended meanwhile passed
    /// its group's turn on; `None` if no job ended in a slot that took the next job.
    pub(crate) fn end_claim(&self, more: bool) -> Option<bool> {
        self.buffer().end_claim(more)
    }

    /// Adds a turn whose claim was sent at `since`: behind the others, unless it may not wait.
    pub(crate) fn push(&self, waiting: PrefetchedTurn, since: Instant) {
        let may_wait = waiting.run.claim.may_wait;
        self.buffer().push(waiting, since, may_wait);
        self.pushed.notify_one();
    }

    /// Returns whether enough jobs in a row could wait for a slot.
    pub(crate) fn is_sure(&self) -> bool {
        self.buffer().safe_streak >= SURE
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer().waiting.is_empty()
    }

    /// Returns the number of slots, with their connections, that are reserved for the next claim.
    pub(crate) fn reserved(&self) -> usize {
        usize::from(self.buffer().claim == NextClaim::Reserved)
    }

    /// Returns the next step of a slot. `origin`: the options that its connection was opened with;
    /// `has_claimed`: whether the connection has claimed before. A turn that was claimed on another
    /// server is not for it.
    pub(crate) fn next(
        &self,
        origin: Option<&Arc<PgConnectOptions>>,
        has_claimed: bool,
    ) -> Next<PrefetchedTurn> {
        let mut buffer = self.buffer();
        let other = |entry: &Entry<PrefetchedTurn>| {
            entry.job.run.origin.as_ref().map(Arc::as_ptr) != origin.map(Arc::as_ptr)
        };
        // One that was held ahead leaves the others to the slots when there are some that may not
        // wait.
        let ahead = self.slots.taken() > buffer.slots && buffer.safe_streak < SURE;
        if ahead || buffer.waiting.front().is_some_and(other) {
            return Next::Nothing;
        }
        buffer.next(has_claimed)
    }

    /// Records the end of a turn in a slot that goes on. It passed its group's turn on, or not.
    pub(crate) fn record_end(&self, passed: bool) {
        self.buffer().record_end(passed);
    }

    /// Returns the next turn for a free slot, or to be held `ahead` of one.
    pub(crate) fn pop(&self, ahead: bool) -> Option<PrefetchedTurn> {
        let mut buffer = self.buffer();
        if ahead { buffer.pop_ahead() } else { buffer.pop() }
    }

    /// Releases the turns that may not wait.
    pub(crate) fn release_urgent(&self) {
        self.release(self.buffer().take(|entry| !entry.may_wait));
    }

    /// Releases all turns: they were claimed on another server than the next ones.
    pub(crate) fn release_all(&self) {
        self.release(self.buffer().take(|_| true));
    }

    /// Releases turns that have waited for [`STALE`]; never returns.
    pub(crate) async fn release_stale(&self) {
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
    pub(crate) async fn close(&self) {
        let rest = {
            let mut buffer = self.buffer();
            buffer.more = false;
            buffer.take(|_| true)
        };
        self.release(rest);
        self.releasing.close();
        self.releasing.wait().await;
    }

    /// Wakes the worker after a release: a slot may have come free meanwhile and found no job.
    pub(crate) fn notify_released(&self) {
        self.wake.notify_one();
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(8);

    /// Returns a buffer after 32 jobs that could all wait.
    fn buffer(now: Instant) -> Buffer<u32> {
        let mut buffer = Buffer { more: true, ..Buffer::default() };
        for n in 0..32 {
            buffer.push(n, now, true);
            buffer.pop();
        }
        buffer
    }

    #[test]
    fn as_many_jobs_are_prefetched_as_lately_ended() {
        let mut buffer = buffer(Instant::now());
        assert_eq!(buffer.begin_claim(8), 8);
        buffer.push(1, Instant::now(), true);
        assert_eq!(buffer.begin_claim(8), 7);
        assert_eq!(buffer.begin_claim(0), 0);
    }

    #[test]
    fn the_room_grows_while_claims_leave_more() {
        let mut buffer = Buffer { limit: 64, limits: (64, 100), ..buffer(Instant::now()) };
        let mut room = |more| {
            buffer.end_claim(more);
            buffer.begin_claim(200)
        };
        assert_eq!([true; 6].map(&mut room), [72, 80, 88, 96, 100, 100]);
        assert_eq!([false, true].map(&mut room), [64, 72]);
    }

    #[test]
    fn a_job_that_may_not_wait_is_next_and_stops_prefetching() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.push(1, now, true);
        buffer.push(2, now, false);
        buffer.push(3, now, false);
        assert_eq!(buffer.begin_claim(8), 0);
        assert_eq!([buffer.pop(), buffer.pop(), buffer.pop()], [Some(2), Some(3), Some(1)]);
        for n in 0..31 {
            buffer.push(n, now, true);
        }
        assert_eq!(buffer.begin_claim(64), 0);
        buffer.push(31, now, true);
        assert_eq!(buffer.begin_claim(64), 32);
    }

    #[test]
    fn slots_take_prefetched_jobs_and_one_of_them_claims() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.begin_claim(8);
        (0..8).for_each(|n| buffer.push(n, now, true));
        // Another claim is on its way.
        assert_eq!(buffer.next(true), Next::Turn(0));
        buffer.record_end(false);
        assert_eq!(buffer.end_claim(true), Some(false));
        assert_eq!(buffer.next(true), Next::Turn(1));
        assert_eq!([buffer.next(false), buffer.next(false)], [2, 3].map(Next::Turn));
        assert_eq!(buffer.next(true), Next::Claim);
        assert_eq!(buffer.next(true), Next::Turn(4), "only one does");
        buffer.record_end(true);
        assert_eq!(buffer.next(false), Next::Turn(5));
        buffer.record_end(false);
        assert_eq!(buffer.end_claim(false), Some(true), "one passed a turn on");
        assert_eq!(
            [buffer.next(true), buffer.next(true)],
            [6, 7].map(Next::Turn),
            "no more is due"
        );
        assert_eq!(buffer.next(true), Next::Nothing);
        buffer.record_end(true);
        assert_eq!(buffer.next(true), Next::Claim, "but what was passed on");
        assert_eq!(buffer.end_claim(true), Some(true));
        assert_eq!(buffer.end_claim(true), None);
    }

    #[test]
    fn a_job_that_may_not_wait_is_taken_if_no_slot_is_free() {
        let now = Instant::now();
        let mut buffer = buffer(now);
        buffer.push(1, now, true);
        buffer.push(2, now, false);
        assert_eq!(buffer.take(|entry| !entry.may_wait), [2]);
        assert_eq!(buffer.pop(), Some(1));
    }

    #[test]
    fn a_stale_prefetched_job_is_released_and_stops_prefetching() {
        let start = Instant::now();
        let mut buffer = buffer(start);
        buffer.push(1, start, true);
        buffer.push(2, start + SOON, true);
        assert!(buffer.take_stale(start + STALE - SOON).is_empty());
        assert_eq!(buffer.begin_claim(8), 6);
        assert_eq!(buffer.take_stale(start + STALE), [1]);
        assert_eq!(buffer.begin_claim(8), 0);
        assert_eq!(buffer.pop(), Some(2));
    }
}

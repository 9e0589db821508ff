//! Jobs that were claimed for slots which are about to be free: while handlers are short, a slot that waited for the next
//! claim after each of them would be idle for most of the time.
//!
//! A job waits here for some milliseconds. One that does not come to run within [`STALE`] goes back as if it had not been
//! claimed; and none waits here for long that would lose more than one of its attempts if this process died.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::attempt::{End, Run};
use crate::connection::SlotConnection;
use crate::slots::Occupied;
use crate::store::HeldJob;

/// How long a job is to wait at most, if slots become free as quickly as they did.
const AHEAD: Duration = Duration::from_millis(20);
/// How long one waits before it goes back. Its claim stands for half a second.
const STALE: Duration = Duration::from_millis(100);
/// How many wait at most, of all, and for each slot. More would not make claims cheaper.
const MOST: usize = 64;
const FOR_A_SLOT: usize = 2;
/// Of how many jobs that were claimed last none may have been one that may not wait.
const SURE: usize = 32;
/// What a slot is taken to need before one has ended, and after jobs had to go back.
const UNKNOWN: Duration = Duration::from_secs(1);
/// By how much the longest of the last times counts less with each that follows.
const FORGET: f64 = 0.9;

/// A claimed job for a slot.
pub(super) struct Waiting {
    pub(super) run: Run,
    pub(super) known: HashMap<i64, HeldJob>,
}

/// The jobs of a worker that wait for its slots.
#[derive(Default)]
pub(super) struct Prefetch(Mutex<Line<Waiting>>);

/// Jobs in the order in which they are to run.
struct Line<T> {
    waiting: VecDeque<Place<T>>,
    /// How long a slot needs for a job: the longest of the last times.
    slot_time: Duration,
    /// How many claimed jobs in a row could wait.
    patient: usize,
    /// The last claim left more: slots go on with what waits, and leave it to the worker else.
    more: bool,
    /// A claim is on its way, or a slot's connection is, for one.
    claiming: bool,
    /// How many are to wait behind a claim.
    room: usize,
}

struct Place<T> {
    job: T,
    /// Since before it was claimed.
    since: Instant,
    may_wait: bool,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            slot_time: UNKNOWN,
            patient: 0,
            more: false,
            claiming: false,
            room: 0,
        }
    }
}

impl<T> Line<T> {
    fn claims(&mut self, slots: usize) -> usize {
        self.claiming = true;
        let rounds = AHEAD.as_micros() / self.slot_time.as_micros().max(1);
        let rounds = usize::try_from(rounds).unwrap_or(FOR_A_SLOT).min(FOR_A_SLOT);
        self.room = if self.patient < SURE { 0 } else { slots.saturating_mul(rounds).min(MOST) };
        self.room.saturating_sub(self.waiting.len())
    }

    fn push(&mut self, job: T, since: Instant, may_wait: bool) {
        self.patient = if may_wait { self.patient.saturating_add(1) } else { 0 };
        let at = if may_wait {
            self.waiting.len()
        } else {
            self.waiting.iter().take_while(|before| !before.may_wait).count()
        };
        self.waiting.insert(at, Place { job, since, may_wait });
    }

    fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|place| place.job)
    }

    fn next(&mut self, took: Duration, claims: bool) -> Option<T> {
        self.slot_time = self.slot_time.mul_f64(FORGET).max(took);
        if !self.more {
            return None;
        }
        if claims && !self.claiming && self.waiting.len() <= self.room / 2 {
            self.claiming = true;
            return None;
        }
        self.pop()
    }

    fn take_stale(&mut self, now: Instant) -> Vec<T> {
        let (stale, rest): (VecDeque<_>, _) =
            self.waiting.drain(..).partition(|place| place.since + STALE <= now);
        self.waiting = rest;
        if !stale.is_empty() {
            self.slot_time = UNKNOWN;
        }
        stale.into_iter().map(|place| place.job).collect()
    }
}

impl Prefetch {
    fn line(&self) -> MutexGuard<'_, Line<Waiting>> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim begins, for a worker of so many slots: how many jobs it may bring beyond those that slots are free for.
    pub(super) fn claims(&self, slots: usize) -> usize {
        self.line().claims(slots)
    }

    /// The claim has ended, and left more or not.
    pub(super) fn claimed(&self, more: bool) {
        let mut line = self.line();
        (line.claiming, line.more) = (false, more);
    }

    /// Puts a job in line that a claim brought which was asked for at `since`: behind the others, unless it may not wait.
    pub(super) fn push(&self, waiting: Waiting, since: Instant) {
        let may_wait = waiting.run.claim.may_wait;
        self.line().push(waiting, since, may_wait);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line().waiting.is_empty()
    }

    /// The next one, for a slot that is free.
    pub(super) fn pop(&self) -> Option<Waiting> {
        self.line().pop()
    }

    /// The next one, for a slot whose last job took so long. None: its connection goes to the worker, perhaps for the next
    /// claim; if it can be, that which `claims`.
    fn next(&self, took: Duration, claims: bool) -> Option<Waiting> {
        self.line().next(took, claims)
    }

    /// When the first of them will have waited for too long.
    pub(super) fn stale_at(&self) -> Option<Instant> {
        self.line().waiting.iter().map(|place| place.since + STALE).min()
    }

    /// Those that have waited for too long by now.
    pub(super) fn take_stale(&self, now: Instant) -> Vec<Run> {
        self.line().take_stale(now).into_iter().map(|waiting| waiting.run).collect()
    }

    /// All of them; slots take no more.
    pub(super) fn close(&self) -> Vec<Run> {
        let mut line = self.line();
        line.more = false;
        line.waiting.drain(..).map(|place| place.job.run).collect()
    }
}

/// Runs a job in its slot, and then those that wait, while the worker's last claim left more.
///
/// Says how they ended, and gives back the connection, if that can be used again.
pub(super) async fn run(
    prefetch: &Prefetch,
    mut next: Waiting,
    mut conn: SlotConnection,
    slot: Occupied,
) -> (End, Option<SlotConnection>) {
    let mut passed = false;
    let (end, conn) = loop {
        let began = Instant::now();
        let (end, left) = next.run.into_end(next.known, conn).await;
        passed |= end != End::Drained;
        let Some(left) = left else { break (end, None) };
        match prefetch.next(began.elapsed(), left.claims) {
            Some(waiting) => (next, conn) = (waiting, left),
            None => break (end, Some(left)),
        }
    };
    drop(slot);
    // One before may have passed its group's turn on.
    (if passed && end == End::Drained { End::Finished } else { end }, conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(2);

    /// A line of 4 slots that have run short jobs, all of which could wait.
    fn line(now: Instant) -> Line<u32> {
        let mut line = Line { more: true, slot_time: SHORT, ..Line::default() };
        for n in 0..32 {
            line.push(n, now, true);
            line.pop();
        }
        line
    }

    #[test]
    fn short_jobs_are_claimed_ahead_for_each_slot() {
        let mut line = line(Instant::now());
        assert_eq!(line.claims(4), 8);
        assert_eq!(line.claims(1000), MOST);
        line.push(1, Instant::now(), true);
        assert_eq!(line.claims(4), 7);
    }

    #[test]
    fn slow_ones_are_not_until_many_were_short() {
        let mut line = line(Instant::now());
        assert_eq!(line.next(Duration::from_millis(200), false), None);
        assert_eq!(line.claims(4), 0);
        for _ in 0..21 {
            line.next(SHORT, false);
        }
        assert_eq!(line.claims(4), 0);
        line.next(SHORT, false);
        assert_eq!(line.claims(4), 4);
    }

    #[test]
    fn a_job_that_may_not_wait_is_next_and_none_is_claimed_ahead_soon() {
        let now = Instant::now();
        let mut line = line(now);
        line.push(1, now, true);
        line.push(2, now, false);
        line.push(3, now, false);
        assert_eq!(line.claims(4), 0);
        assert_eq!([line.pop(), line.pop(), line.pop()], [Some(2), Some(3), Some(1)]);
        for n in 0..31 {
            line.push(n, now, true);
        }
        assert_eq!(line.claims(100), 0);
        line.push(31, now, true);
        assert_eq!(line.claims(100), MOST - 32);
    }

    #[test]
    fn slots_go_on_while_there_is_more_and_the_one_that_claims_does_in_time() {
        let now = Instant::now();
        let mut line = line(now);
        line.claims(4);
        (0..8).for_each(|n| line.push(n, now, true));
        // Another claim is on its way.
        assert_eq!(line.next(SHORT, true), Some(0));
        line.claiming = false;
        assert_eq!(line.next(SHORT, true), Some(1));
        assert_eq!([line.next(SHORT, false), line.next(SHORT, false)], [Some(2), Some(3)]);
        assert_eq!(line.next(SHORT, true), None);
        assert_eq!(line.next(SHORT, true), Some(4), "only one does");
        line.more = false;
        assert_eq!(line.next(SHORT, false), None);
    }

    #[test]
    fn what_has_waited_for_too_long_goes_and_nothing_is_claimed_ahead_soon() {
        let start = Instant::now();
        let mut line = line(start);
        line.push(1, start, true);
        line.push(2, start + SHORT, true);
        assert!(line.take_stale(start + STALE - SHORT).is_empty());
        assert_eq!(line.claims(4), 6);
        assert_eq!(line.take_stale(start + STALE), [1]);
        assert_eq!(line.claims(4), 0);
        assert_eq!(line.pop(), Some(2));
    }
}

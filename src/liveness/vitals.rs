//! The health of a processor. Recorded where it happens, read by `Running::health`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::slots::SlotGauges;
use crate::slots::queue_slots::SlotUsage;

/// The health of the sessions that all queues of a processor share.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    listening: AtomicBool,
    /// Until when the last proof of the presence holds.
    presence_until: Mutex<Option<Instant>>,
    /// The background tasks that have panicked and do not run again yet.
    down: Arc<Mutex<Vec<String>>>,
}

/// A background task that does not run, until it is dropped.
#[derive(Debug)]
pub(crate) struct Down {
    task: String,
    down: Arc<Mutex<Vec<String>>>,
}

impl Drop for Down {
    fn drop(&mut self) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = down.iter().position(|task| *task == self.task) {
            down.swap_remove(at);
        }
    }
}

impl Vitals {
    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Relaxed);
    }

    /// Notes that a background task does not run, until what it returns is dropped.
    pub(crate) fn note_down(&self, task: &str) -> Down {
        // Nothing panics under the lock.
        self.down.lock().unwrap_or_else(PoisonError::into_inner).push(task.to_owned());
        Down { task: task.to_owned(), down: Arc::clone(&self.down) }
    }

    /// Returns the background tasks that do not run.
    pub(crate) fn down(&self) -> Vec<String> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    pub(crate) fn record_presence(&self, until: Option<Instant>) {
        // Nothing panics under the lock.
        *self.presence_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Returns whether the presence is proved now.
    pub(crate) fn has_presence(&self, now: Instant) -> bool {
        let until = self.presence_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| now < until)
    }
}

/// The health of one queue's worker.
#[derive(Debug, Default)]
pub(crate) struct QueueVitals {
    pub(crate) slot_usage: Arc<SlotUsage>,
    claims: Mutex<ClaimVitals>,
}

/// The claims of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClaimVitals {
    /// When the last claim came back.
    pub(crate) last: Option<Instant>,
    /// Whether the last claim failed.
    pub(crate) failing: bool,
    /// How long the jobs of the last claim that brought some had been due, at most.
    pub(crate) lag: Option<Duration>,
}

impl QueueVitals {
    /// Returns the vitals of a queue with so many slots, which metrics show.
    pub(crate) fn new(queue: &str, slots: usize) -> Self {
        let slot_usage = SlotUsage::shown_by(SlotGauges::new(queue, slots));
        Self { slot_usage: Arc::new(slot_usage), claims: Mutex::default() }
    }

    /// Records a claim. `lag` is `None` if it brought no job.
    pub(crate) fn record_claim(&self, now: Instant, lag: Option<Duration>) {
        let mut claims = self.lock();
        (claims.last, claims.failing) = (Some(now), false);
        claims.lag = lag.or(claims.lag);
    }

    pub(crate) fn record_failed_claim(&self) {
        self.lock().failing = true;
    }

    pub(crate) fn claims(&self) -> ClaimVitals {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, ClaimVitals> {
        // Nothing panics under the lock.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

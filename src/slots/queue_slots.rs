//! The slots of a processor's queues, and how many of them are taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::slots::SlotGauges;
use crate::slots::fair_share::{FairShare, Want};

/// The slots of a processor whose queues share them.
#[derive(Debug)]
struct SharedSlots {
    fair: Mutex<FairShare>,
    /// One per part: notified when slots wait for it.
    given: Vec<Notify>,
}

/// A job that took less than this counts as quick, and counts for this long after its end.
pub(crate) const QUICK: Duration = Duration::from_millis(20);
/// How many jobs are counted for each [`QUICK`], on average.
pub(crate) const COUNTED: usize = 128;
/// Ends of jobs that took less than this say as well how many slots come free in [`QUICK`]: they
/// are counted over this time.
const STEADY: Duration = Duration::from_millis(100);
/// How many times [`QUICK`] goes into [`STEADY`].
const QUICKS: usize = 5;

/// The part of one queue, on one server, in the slots of its processor.
#[derive(Debug)]
pub(crate) struct QueueSlots {
    /// `None` if the queue shares no slots, and has all of its own.
    shared: Option<Arc<SharedSlots>>,
    id: usize,
}

/// Slots that jobs may be claimed for. Slots in which no job started are given back when dropped.
#[derive(Debug)]
pub(crate) struct ReservedSlots {
    shared: Option<Arc<SharedSlots>>,
    id: usize,
    count: usize,
}

/// The slot of a running job, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    shared: Option<Arc<SharedSlots>>,
    id: usize,
}

/// The taken slots of a queue in this process, and the quick jobs that ended in them lately.
#[derive(Debug, Default)]
pub(crate) struct SlotUsage {
    taken: AtomicUsize,
    freed: Notify,
    /// When each of the last jobs ended that took less than [`STEADY`], the last one first, and
    /// whether it was quick.
    ends: Mutex<VecDeque<(Instant, bool)>>,
    gauges: SlotGauges,
}

/// A taken slot, free again when dropped: with its job, or once only the batched settle of its job
/// is left.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    usage: Arc<SlotUsage>,
    since: Instant,
    #[allow(dead_code)] // For its drop.
    slot: Option<Slot>,
}

impl SlotUsage {
    /// Returns the usage of a queue's slots, which metrics show.
    pub(crate) fn shown_by(gauges: SlotGauges) -> Self {
        Self { gauges, ..Self::default() }
    }

    pub(crate) fn take(self: &Arc<Self>, slot: Option<Slot>) -> SlotGuard {
        // A job that is held ahead has no slot yet.
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.gauges.slots() {
            self.gauges.take();
        }
        SlotGuard { usage: Arc::clone(self), since: Instant::now(), slot }
    }

    /// Returns the number of quick jobs that ended in the last [`QUICK`].
    pub(crate) fn quick_ends(&self, now: Instant) -> usize {
        let ends = self.lock_ends();
        let lately = ends.iter().take_while(|(at, _)| now < *at + QUICK);
        lately.filter(|(_, quick)| *quick).count()
    }

    /// Returns how many jobs are expected to end in the next [`QUICK`]: as many quick ones as
    /// lately, or the mean of all that ended in the last [`STEADY`].
    pub(crate) fn expected_ends(&self, now: Instant) -> usize {
        let steady = self.lock_ends().iter().take_while(|(at, _)| now < *at + STEADY).count();
        self.quick_ends(now).max(steady.div_ceil(QUICKS))
    }

    /// Records the end of a job that began at `since`.
    pub(crate) fn record_end(&self, since: Instant, now: Instant) {
        if now < since + STEADY {
            let mut ends = self.lock_ends();
            ends.truncate(QUICKS * COUNTED - 1);
            ends.push_front((now, now < since + QUICK));
        }
    }

    fn lock_ends(&self) -> MutexGuard<'_, VecDeque<(Instant, bool)>> {
        // Nothing panics under the lock.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Resolves when a slot has become free since the last call.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Makes [`freed`](Self::freed) resolve once more, for a slot that was freed and is still free.
    pub(crate) fn notify_freed(&self) {
        self.freed.notify_one();
    }
}

impl SlotGuard {
    /// Records that the slot's job has ended and the turn's next job begins.
    pub(crate) fn begin_next_job(&mut self) {
        let now = Instant::now();
        self.usage.record_end(std::mem::replace(&mut self.since, now), now);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.usage.record_end(self.since, Instant::now());
        if self.usage.taken.fetch_sub(1, Ordering::Relaxed) <= self.usage.gauges.slots() {
            self.usage.gauges.give_back();
        }
        self.usage.freed.notify_one();
    }
}

/// Returns, for each of so many servers, the parts of queues with these weights and limits. All
/// share `slots`; `None`: no bound.
pub(crate) fn share(
    slots: Option<usize>,
    queues: &[(u32, usize)],
    servers: usize,
) -> Vec<Vec<QueueSlots>> {
    let shared = slots.map(|slots| {
        Arc::new(SharedSlots {
            fair: Mutex::new(FairShare::new(slots, queues, servers)),
            given: (0..queues.len() * servers).map(|_| Notify::new()).collect(),
        })
    });
    let part = |id| QueueSlots { shared: shared.clone(), id };
    let of = |server| (0..queues.len()).map(|queue| part(server * queues.len() + queue)).collect();
    (0..servers).map(of).collect()
}

impl SharedSlots {
    fn fair(&self) -> MutexGuard<'_, FairShare> {
        // Nothing panics under the lock.
        self.fair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the share, and gives away the slots that are free then.
    fn change<T>(&self, change: impl FnOnce(&mut FairShare) -> T) -> T {
        let mut fair = self.fair();
        let result = change(&mut fair);
        while let Some(id) = fair.give() {
            if let Some(given) = self.given.get(id) {
                given.notify_one();
            }
        }
        result
    }
}

impl QueueSlots {
    /// Returns whether the queue shares slots with others.
    pub(crate) fn bounded(&self) -> bool {
        self.shared.is_some()
    }

    /// Takes slots for a claim, of the `free` ones by the queue's own limit: all that it can have,
    /// or one to poll. If it gets none, [`given`](Self::given) resolves when there are some.
    pub(crate) fn reserve(&self, free: usize, all: bool) -> ReservedSlots {
        let wanted = if all { free } else { free.min(1) };
        let count = match &self.shared {
            None => wanted,
            Some(shared) => {
                // One may wait already, given when the last job ended.
                let count = shared.fair().fetch(self.id, wanted);
                if count < wanted {
                    let want = if all { Want::All } else { Want::Poll };
                    shared.change(|fair| fair.set_want(self.id, want));
                    count + shared.fair().fetch(self.id, wanted - count)
                } else {
                    count
                }
            }
        };
        ReservedSlots { shared: self.shared.clone(), id: self.id, count }
    }

    /// Sets, after a claim, whether there is more work. If not, the queue competes for no slot
    /// until it reserves again or one of its jobs ends.
    pub(crate) fn set_more(&self, more: bool) {
        if let Some(shared) = &self.shared {
            let want = if more { Want::All } else { Want::Nothing };
            shared.change(|fair| fair.set_want(self.id, want));
        }
    }

    /// Resolves when slots wait to be reserved.
    pub(crate) async fn given(&self) {
        let Some((shared, given)) =
            self.shared.as_ref().and_then(|shared| Some((shared, shared.given.get(self.id)?)))
        else {
            return std::future::pending().await;
        };
        // The notification may be older than the last fetch.
        while shared.fair().waiting(self.id) == 0 {
            given.notified().await;
        }
    }
}

impl Drop for QueueSlots {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.change(|fair| fair.leave(self.id));
        }
    }
}

impl ReservedSlots {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Gives all of them back.
    pub(crate) fn give_back(&mut self) {
        let count = std::mem::take(&mut self.count);
        if let Some(shared) = &self.shared
            && count > 0
        {
            shared.change(|fair| fair.give_back(self.id, count));
        }
    }

    /// Returns one of the slots for a job that starts; `None` if none is left.
    pub(crate) fn take_slot(&mut self) -> Option<Slot> {
        self.count = self.count.checked_sub(1)?;
        Some(Slot { shared: self.shared.clone(), id: self.id })
    }
}

impl Drop for ReservedSlots {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.change(|fair| fair.end_job(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn quick_jobs_count_for_a_while_and_slow_ones_never() {
        let slots = SlotUsage::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        slots.record_end(at(0), at(19));
        slots.record_end(at(0), at(20));
        slots.record_end(at(5), at(24));
        assert_eq!(slots.quick_ends(at(24)), 2);
        assert_eq!(slots.quick_ends(at(39)), 1);
        assert_eq!(slots.quick_ends(at(44)), 0);
        (0..1000).for_each(|_| slots.record_end(at(50), at(51)));
        assert_eq!(slots.quick_ends(at(52)), QUICKS * COUNTED);
    }

    #[test]
    fn slower_jobs_count_by_their_mean_and_slow_ones_never() {
        let slots = SlotUsage::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        (0..8).for_each(|n| slots.record_end(at(0), at(50 + n)));
        assert_eq!((slots.quick_ends(at(60)), slots.expected_ends(at(60))), (0, 2));
        slots.record_end(at(0), at(100));
        assert_eq!(slots.expected_ends(at(145)), 2, "8 of 50 ms, none of 100");
        assert_eq!(slots.expected_ends(at(156)), 1);
        assert_eq!(slots.expected_ends(at(160)), 0);
        (0..30).for_each(|_| slots.record_end(at(155), at(160)));
        assert_eq!(slots.expected_ends(at(161)), 30, "quick ones as they came");
        (0..1000).for_each(|_| slots.record_end(at(160), at(161)));
        assert_eq!(slots.expected_ends(at(162)), QUICKS * COUNTED);
    }

    #[tokio::test]
    async fn a_slot_that_frees_wakes_the_queue_that_waits() {
        let queues = share(Some(1), &[(1, 10), (1, 10)], 1).remove(0);
        let [first, second] = &queues[..] else { unreachable!() };
        let mut reserved = first.reserve(5, true);
        assert_eq!(reserved.count(), 1);
        let slot = reserved.take_slot();
        first.set_more(false);
        assert_eq!(second.reserve(5, false).count(), 0);
        assert!(second.given().now_or_never().is_none());
        drop(slot);
        second.given().await;
        assert_eq!(second.reserve(5, false).count(), 1);
        // A notification of slots that were fetched wakes no queue.
        assert!(second.given().now_or_never().is_none());
    }

    #[tokio::test]
    async fn unused_slots_go_to_others_at_once() {
        let queues = share(Some(3), &[(1, 10), (1, 10)], 1).remove(0);
        let [first, second] = &queues[..] else { unreachable!() };
        let mut reserved = first.reserve(2, true);
        assert_eq!(reserved.count(), 2);
        let _slot = reserved.take_slot();
        first.set_more(false);
        drop(reserved);
        assert_eq!(second.reserve(10, true).count(), 2);
    }

    #[tokio::test]
    async fn without_a_bound_a_queue_has_its_own_slots() {
        let queues = share(None, &[(1, 10)], 1).remove(0);
        assert_eq!(queues[0].reserve(7, true).count(), 7);
        assert_eq!(queues[0].reserve(7, false).count(), 1);
        assert_eq!(queues[0].reserve(0, false).count(), 0);
        assert!(queues[0].given().now_or_never().is_none());
    }
}

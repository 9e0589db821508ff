//! The gauges of slots.

use crate::metrics::facade::{Gauge, gauge, no_gauge};
use crate::metrics::label::label;
use crate::metrics::names::SLOTS;

/// The slots of one queue, as the gauges show them until this is dropped.
#[derive(Debug)]
pub(crate) struct SlotGauges {
    busy: Gauge,
    free: Gauge,
    slots: u32,
}

impl SlotGauges {
    /// Shows so many free slots of a queue.
    pub(crate) fn new(queue: &str, slots: usize) -> Self {
        let state = |state| gauge(&SLOTS, &[("queue", label(queue)), ("state", state)]);
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let gauges = Self { busy: state("busy"), free: state("free"), slots };
        gauges.free.increment(f64::from(slots));
        gauges
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots as usize
    }

    pub(crate) fn take(&self) {
        self.busy.increment(1.0);
        self.free.decrement(1.0);
    }

    pub(crate) fn give_back(&self) {
        self.busy.decrement(1.0);
        self.free.increment(1.0);
    }
}

impl Default for SlotGauges {
    /// Shows nothing.
    fn default() -> Self {
        Self { busy: no_gauge(), free: no_gauge(), slots: 0 }
    }
}

impl Drop for SlotGauges {
    fn drop(&mut self) {
        self.free.decrement(f64::from(self.slots));
    }
}

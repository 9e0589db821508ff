//! The loop of one queue in one process: waits, claims, and starts each claimed turn in a slot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::attempt::connection::SlotConnection;
use crate::attempt::turn::{QueueRuntime, TurnEnd};
use crate::job::caught::panic_words;
use crate::liveness::context::Context;
use crate::liveness::heartbeat::LoopHeartbeat;
use crate::liveness::supervised::report_panic;
use crate::liveness::vitals::QueueVitals;
use crate::slots::queue_slots::{QUICK, QueueSlots, ReservedSlots, SlotGuard};
use crate::worker::prefetch::PrefetchedTurn;
use crate::worker::state::WorkerState;

pub(crate) struct Worker {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: Arc<QueueRuntime>,
    pub(crate) pool: PgPool,
    pub(crate) wake: Arc<Notify>,
    pub(crate) slots: QueueSlots,
    pub(crate) vitals: Arc<QueueVitals>,
    pub(crate) heartbeat: Arc<LoopHeartbeat>,
    pub(crate) stop: CancellationToken,
    pub(crate) poll: Duration,
    /// How many connections of the pool the queue may use beyond its slots: see
    /// [`ahead`](Self::ahead).
    pub(crate) more_connections: usize,
}

impl Worker {
    /// Reserves slots for a claim. After a claim that left more, these are all free slots; else as
    /// many as need no further connection, or one.
    pub(crate) fn reserve(&self, state: &mut WorkerState) -> ReservedSlots {
        let mut free = self.free(state);
        if !self.leased() {
            free = free.min(state.reach.max(state.spare.len()));
        }
        // A poll may reserve all slots of the queue's own that need no further connection.
        let all = state.busy || !self.slots.bounded();
        let reserved = self.slots.reserve(free, all);
        // A connection is not kept without a slot: another queue may have the slot, and need the
        // connection.
        state.keep_spare(reserved.count().max(self.spares(state)));
        if state.spare.len() + state.coming.len() > reserved.count() {
            state.coming.detach_all();
        }
        reserved
    }

    /// Returns whether to claim though no slot is free: a lease needs no connection of its slot. By
    /// transaction a slot takes the next prefetched job, and is free in time for the next claim.
    pub(crate) fn may_prefetch(&self, state: &WorkerState) -> bool {
        self.leased()
            && !self.slots.bounded()
            && !state.limited
            && state.busy
            && state.prefetch.runs_low()
    }

    /// Starts prefetched jobs in free slots. By transaction it leaves the slot that is reserved for
    /// the next claim.
    pub(crate) fn start_prefetched(&self, state: &mut WorkerState) {
        let leased = self.leased();
        let has_room = |state: &WorkerState| {
            let free = self.free(state);
            if leased { free > 0 } else { free.min(state.spare.len()) > state.prefetch.reserved() }
        };
        while !self.stop.is_cancelled()
            && has_room(state)
            && let Some(waiting) = state.prefetch.pop(self.is_ahead(state))
        {
            let slot = state.slot_usage.take(None);
            self.start(state, waiting, slot);
        }
    }

    /// Starts a turn in its slot; by transaction on a spare connection.
    pub(crate) fn start(&self, state: &mut WorkerState, waiting: PrefetchedTurn, slot: SlotGuard) {
        if let Some(guard) = waiting.guard {
            let pool = self.pool.clone();
            let run = waiting.run.into_end_leased(waiting.jobs, pool, guard, slot);
            state.slots.spawn(async move {
                run.await;
                (TurnEnd::Finished, None)
            });
        } else if let Some(conn) = state.for_job() {
            let prefetch = Arc::clone(&state.prefetch);
            state.slots.spawn(crate::worker::slot::run(prefetch, waiting, conn, slot));
        }
    }

    /// Takes a slot's connection back. Returns how its job ended. A slot that panicked leaves its
    /// claim to a take-over.
    pub(crate) fn take_back(
        &self,
        state: &mut WorkerState,
        ended: Result<(TurnEnd, Option<SlotConnection>), JoinError>,
    ) -> TurnEnd {
        let ended = ended.unwrap_or_else(|error| {
            self.queue.left_claim.store(true, Ordering::Relaxed);
            if let Ok(panic) = error.try_into_panic() {
                let task = format!("a slot of queue {:?}", &*self.queue.name);
                report_panic(&self.context, &task, panic_words(panic));
            }
            (TurnEnd::Lost, None)
        });
        state.take_back(ended)
    }

    /// Returns the number of slots that are free by the queue's own limit, and of jobs that may be
    /// held ahead.
    pub(crate) fn free(&self, state: &WorkerState) -> usize {
        let slots = self.queue.options.concurrency + self.ahead(state);
        slots.saturating_sub(state.slot_usage.taken())
    }

    /// Returns whether the next job to start would be held ahead.
    fn is_ahead(&self, state: &WorkerState) -> bool {
        !self.leased() && state.slot_usage.taken() >= self.queue.options.concurrency
    }

    /// Returns how many jobs may be held beyond those whose handlers run. By transaction a slot
    /// settles a job and holds the next one in the time of a round trip: while handlers are quick,
    /// others are held by then, so that no handler is waited for.
    fn ahead(&self, state: &WorkerState) -> usize {
        let concurrency = self.queue.options.concurrency;
        let quick = || self.queue.time_slice.is_quicker_than(QUICK);
        // In a single slot jobs begin in the order of their claim.
        if concurrency < 2 || self.leased() || self.slots.bounded() {
            return 0;
        }
        if !state.busy || !state.prefetch.is_sure() || !quick() {
            return 0;
        }
        self.more_connections.min(concurrency.div_ceil(2))
    }

    /// Returns whether what is claimed now will be kept.
    pub(crate) fn may_claim(&self) -> bool {
        !self.leased() || self.context.leases.may_claim(&self.pool.connect_options())
    }

    pub(crate) fn leased(&self) -> bool {
        self.queue.options.hold.is_leased()
    }

    /// Returns whether slots that come free during a claim take prefetched jobs here. By
    /// transaction the slots do so themselves.
    pub(crate) fn may_start_during_claim(&self, state: &WorkerState) -> bool {
        self.leased() && !state.prefetch.is_empty() && !self.stop.is_cancelled()
    }

    pub(crate) fn start_during_claim(&self, state: &mut WorkerState) {
        self.start_prefetched(state);
        if self.free(state) > 0 && state.prefetch.is_empty() {
            // The next wait for a free slot must see this slot.
            state.slot_usage.notify_freed();
        }
    }
}

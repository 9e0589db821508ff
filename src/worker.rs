//! The loop of one queue in one process: wait, claim, and let each claimed job run in a slot.

mod again;
mod claiming;
mod prefetch;
mod state;
mod strays;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::attempt::{End, QueueRuntime};
use crate::pulse::Pulse;
use crate::queue::Hold;
use crate::shared::Shared;
use crate::slots::{Occupied, QueueSlots, Reserved};
use crate::stall::Doing;
use prefetch::Waiting;
use state::State;

/// How long a claim that is known to find more work than it has slots for waits for further slots to end.
const GATHER: Duration = Duration::from_millis(1);
/// How long leases are not claimed because others have not been told how to see whether this process lives.
const UNANNOUNCED: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<QueueRuntime>,
    pub(crate) pool: PgPool,
    pub(crate) wake: Arc<Notify>,
    pub(crate) slots: QueueSlots,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) stop: CancellationToken,
    pub(crate) poll: Duration,
}

impl Worker {
    /// Runs until told to stop and all slots are empty.
    pub(crate) async fn run(self) {
        tokio::select! {
            _ = self.shared.route.is_open() => {}
            () = self.stop.cancelled() => {}
        }
        if self.leased() {
            // If it died before, nobody would judge it: what it claimed would stand for the whole lease.
            tokio::select! {
                () = self.shared.leases.announced.cancelled() => {}
                () = sleep(UNANNOUNCED) => {}
                () = self.stop.cancelled() => {}
            }
        }
        let mut state = State::new(&self.wake);
        let prefetch = Arc::clone(&state.prefetch);
        tokio::select! {
            () = self.work(&mut state) => {}
            () = prefetch.give_back_stale() => {}
        }
        state.spare.clear();
        state.coming.detach_all();
        prefetch.close().await;
        while state.slots.join_next().await.is_some() {}
    }

    /// Until told to stop.
    async fn work(&self, state: &mut State) {
        while !self.stop.is_cancelled() {
            self.doubt_strays(state).await;
            self.start_waiting(state);
            let reserved = self.reserve(state);
            state.quiet = false;
            state.again.looks(Instant::now());
            let pause = if reserved.count() == 0 && !self.claims_ahead(state) {
                state.again.clear();
                None
            } else if self.leased() && !self.shared.leases.may_claim() {
                // They may be another queue's meanwhile.
                drop(reserved);
                Some(self.poll)
            } else {
                self.fill_slots(state, reserved).await
            };
            self.wait(state, pause).await;
        }
    }

    /// Takes slots for a claim: those that are free if there is work, one to look for some.
    fn reserve(&self, state: &mut State) -> Reserved {
        let mut free = self.free(state);
        if !self.leased() {
            free = free.min(state.reach);
        }
        // A look of leases may take all slots: they are its own, and cost no connections.
        let all = state.busy || (self.leased() && !self.slots.bounded());
        let reserved = self.slots.reserve(free, all);
        // No connection is kept without a slot: another queue may have the slot, and need the connection.
        state.keep(reserved.count().max(self.kept(state)));
        if state.spare.len() + state.coming.len() > reserved.count() {
            state.coming.detach_all();
        }
        reserved
    }

    /// Whether to claim though no slot is free: a lease needs no connection of its slot. By transaction a slot goes on with what
    /// waits, and is free in time for the next claim.
    fn claims_ahead(&self, state: &State) -> bool {
        let may = self.leased() && !self.slots.bounded() && state.busy && !state.course.thorough;
        may && state.prefetch.runs_low()
    }

    /// Starts jobs that wait in slots that are free; by transaction, but for one that is left for the next claim.
    fn start_waiting(&self, state: &mut State) {
        let leased = self.leased();
        let has_room = |state: &State| {
            let free = self.free(state);
            if leased { free > 0 } else { free.min(state.spare.len()) > state.prefetch.reserved() }
        };
        while !self.stop.is_cancelled()
            && has_room(state)
            && let Some(waiting) = state.prefetch.pop()
        {
            let slot = state.occupancy.take(None);
            self.start(state, waiting, slot);
        }
    }

    /// Starts a job in its slot; by transaction on a connection that it takes.
    fn start(&self, state: &mut State, waiting: Waiting, slot: Occupied) {
        if let Some(kept) = waiting.kept {
            let pool = self.pool.clone();
            let run = waiting.run.into_end_leased(waiting.known, pool, kept, slot);
            state.slots.spawn(async move {
                run.await;
                (End::Finished, None)
            });
        } else if let Some(conn) = state.for_job() {
            let prefetch = Arc::clone(&state.prefetch);
            state.slots.spawn(prefetch::run(prefetch, waiting, conn, slot));
        }
    }

    /// How many slots are free by the queue's own limit.
    fn free(&self, state: &State) -> usize {
        self.queue.options.concurrency.saturating_sub(state.occupancy.count())
    }

    /// How many connections stay for the next job and the look behind it: asking for one costs round trips, and there are as
    /// many as slots, unless those are shared.
    fn kept(&self, state: &State) -> usize {
        let own = !self.leased() && !self.slots.bounded();
        if own { self.free(state).min(2) } else { 0 }
    }

    fn leased(&self) -> bool {
        self.queue.options.hold != Hold::Transaction
    }

    /// Waits for a slot to end or to be given, a wake-up, the pause, or the stop.
    async fn wait(&self, state: &mut State, pause: Option<Duration>) {
        self.pulse.begins(Doing::Waiting);
        let room = self.free(state) > 0;
        let now = Instant::now();
        let paused = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let mut paused = pin!(paused);
        loop {
            let look_at = state.strays.into_iter().chain([state.again.at()]).flatten().min();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                Some(ended) = state.slots.join_next() => {
                    let end = state.ended(ended);
                    self.start_waiting(state);
                    if end == End::Drained && state.quiet {
                        state.keep(self.kept(state));
                        continue;
                    }
                }
                () = state.occupancy.freed(), if !state.quiet || !state.prefetch.is_empty() => {
                    self.start_waiting(state);
                    if state.quiet {
                        continue;
                    }
                }
                () = self.slots.given(), if room => {}
                () = self.wake.notified(), if pause.is_some() => {}
                () = &mut paused => {}
                () = sleep_until(look_at.unwrap_or(now)), if look_at.is_some() => {}
            }
            break;
        }
        while let Some(ended) = state.slots.try_join_next() {
            state.ended(ended);
        }
        if state.busy && state.prefetch.is_empty() {
            self.gather(state).await;
        }
    }

    /// Lets more slots end, up to half of them: a claim for many costs little more than one for a single job.
    async fn gather(&self, state: &mut State) {
        let until = Instant::now() + GATHER;
        while state.occupancy.count() > self.queue.options.concurrency / 2 {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = state.occupancy.freed() => {}
                Some(ended) = state.slots.join_next() => {
                    state.ended(ended);
                }
                () = sleep_until(until) => break,
            }
        }
    }
}

//! The loop of one queue in one process: wait, claim, and let each claimed job run in a slot.

mod again;
mod claiming;
mod prefetch;
mod state;
mod strays;

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::attempt::{End, QueueRuntime};
use crate::lookout::{Asking, LATE, Place};
use crate::pulse::Pulse;
use crate::queue::Hold;
use crate::shared::Shared;
use crate::slots::{Occupied, QUICK, QueueSlots, Reserved};
use crate::stall::Doing;
use prefetch::Waiting;
use state::State;

/// How long a claim that is known to find more work than it has slots for waits for further slots to end.
const GATHER: Duration = Duration::from_millis(1);
/// How many connections an idle queue keeps that holds by transaction.
const KEPT: usize = 2;
/// How long others may look for a worker: its own look shows whether its connection still lives, and needs no presence.
const OWN_LOOK: Duration = Duration::from_secs(30);
/// How long leases are not claimed because others have not been told how to see whether this process lives.
const UNANNOUNCED: Duration = Duration::from_secs(5);

/// How long a worker waits that is not called.
#[derive(Debug, Clone, Copy)]
enum Pause {
    /// No slot is free.
    UntilFree,
    For(Duration),
    /// Nothing is due, as far as it is known before then.
    Poll {
        next: Option<Duration>,
    },
}

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
        tokio::select! {
            () = self.shared.schema.opened() => {}
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
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.shared.schema.opened() => {}
            }
            self.doubt_strays(state).await;
            self.start_waiting(state);
            let reserved = self.reserve(state);
            state.quiet = false;
            state.again.looks(Instant::now());
            let pause = if reserved.count() == 0 && !self.claims_ahead(state) {
                state.again.clear();
                Pause::UntilFree
            } else if self.leased() && !self.shared.leases.may_claim() {
                // They may be another queue's meanwhile.
                drop(reserved);
                Pause::For(self.poll)
            } else {
                self.fill_slots(state, reserved).await
            };
            self.wait(state, pause).await;
        }
    }

    /// Takes slots for a claim: those that are free if there is work; to look for some, as many as cost no further connection, or one.
    fn reserve(&self, state: &mut State) -> Reserved {
        let mut free = self.free(state);
        if !self.leased() {
            free = free.min(state.reach.max(state.spare.len()));
        }
        // A look may take all slots that are its own, and whose connections are there, or not needed.
        let all = state.busy || !self.slots.bounded();
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

    /// How many connections stay for the next job and the look behind it, and while jobs come one after the other for as many as
    /// ended lately: asking for one costs round trips, and there are as many as slots, unless those are shared.
    fn kept(&self, state: &State) -> usize {
        let own = !self.leased() && !self.slots.bounded();
        let lately = || state.occupancy.quick_ends(Instant::now()).max(KEPT);
        if own { self.free(state).min(lately()) } else { 0 }
    }

    fn leased(&self) -> bool {
        self.queue.options.hold != Hold::Transaction
    }

    /// Waits for a slot to end or to be given, a wake-up, the pause, or the stop.
    async fn wait(&self, state: &mut State, pause: Pause) {
        self.pulse.begins(Doing::Waiting);
        let room = self.free(state) > 0;
        let now = Instant::now();
        let (mut until, next, asking) = match pause {
            Pause::UntilFree => (None, None, None),
            Pause::For(pause) => (Some(now + pause), None, None),
            Pause::Poll { next } => {
                // A little apart, so that many processes do not poll in step.
                let poll = self.poll.mul_f64(0.9 + fastrand::f64() * 0.1);
                let soon = next.filter(|next| *next < poll);
                let asking = if soon.is_none() { self.ask(state) } else { None };
                let next = next.and_then(|next| now.checked_add(next));
                (Some(now + soon.unwrap_or(poll)), next, asking)
            }
        };
        // When to look, by what the process has seen meanwhile.
        let own = now + OWN_LOOK.max(self.poll).mul_f64(0.7 + fastrand::f64() * 0.3);
        let later = |asking: &Asking| {
            let until = asking.until().min(own);
            next.map_or(until, |next| next.min(until))
        };
        // Connections that were kept while jobs came one after the other.
        let idle = matches!(pause, Pause::Poll { .. });
        let mut trim_at = (idle && state.spare.len() > KEPT).then(|| now + QUICK);
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
                () = self.wake.notified(), if until.is_some() => {}
                () = sleep_until(trim_at.unwrap_or(now)), if trim_at.is_some() => {
                    trim_at = None;
                    state.keep(self.kept(state));
                    continue;
                }
                () = changed(asking.as_ref()) => {
                    until = asking.as_ref().map(later);
                    continue;
                }
                () = sleep_until(until.unwrap_or(now)), if until.is_some() => {
                    let later = asking.as_ref().map(later).filter(|at| *at > Instant::now());
                    if later.is_some() {
                        until = later;
                        continue;
                    }
                }
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

    /// Has the process look for this queue together with others, if the last claim has read all, and not for long.
    fn ask(&self, state: &State) -> Option<Asking> {
        let place = || Place::Queue(self.queue.name.to_string());
        let late = LATE.mul_f64(0.5 + fastrand::f64() / 2.0);
        let ask = || self.shared.lookout.ask(place(), Instant::now(), self.poll, late);
        state.course.read_shortly().then(ask).flatten()
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

/// Waits for a look of the process, if somebody asked for one.
async fn changed(asking: Option<&Asking>) {
    match asking {
        Some(asking) => asking.changed().await,
        None => std::future::pending().await,
    }
}

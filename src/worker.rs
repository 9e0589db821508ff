//! The loop of one queue in one process: wait, claim, and let each claimed job run in a slot.

mod again;
mod prefetch;
mod state;
mod strays;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::attempt::{End, QueueRuntime, Run};
use crate::claim::{self, Claimed};
use crate::error::BackgroundError;
use crate::pulse::Pulse;
use crate::queue::Hold;
use crate::shared::Shared;
use crate::slots::{QueueSlots, Reserved};
use crate::stall::Doing;
use crate::withheld::quiet;
use prefetch::Waiting;
use state::State;

/// A claim that takes longer has lost its server, or is too large for it.
const CLAIM_LIMIT: Duration = Duration::from_secs(5);
/// How long a claim waits for its first connection, and for each further one.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);
const MORE_CONNECTIONS: Duration = Duration::from_millis(20);
/// How many connections a queue asks for at once: hundreds of new ones would keep a small server from everything else, the check
/// of the holds too, for seconds.
const OPENED_TOGETHER: usize = 32;
/// Before a claim that saw more work than it could take looks again.
const SOON: Duration = Duration::from_millis(20);
/// How long a claim that is known to find more work than it has slots for waits for further slots to end.
const GATHER: Duration = Duration::from_millis(1);
/// A lone job, behind which nothing follows, must not cost a connection for each slot.
const REACH: usize = 4;
/// How long leases are not claimed because others have not been told how to see whether this process lives.
const UNANNOUNCED: Duration = Duration::from_secs(5);
/// After a claim that failed; doubled up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

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
            let pause = if reserved.count() == 0 {
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

    /// Starts jobs that wait in slots that are free, but for one that is left for the next claim.
    fn start_waiting(&self, state: &mut State) {
        while self.free(state).min(state.spare.len()) > state.prefetch.reserved()
            && let Some(waiting) = state.prefetch.pop()
            && let Some(conn) = state.for_job()
        {
            let slot = state.occupancy.take(None);
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

    /// Claims for the reserved slots; how long to wait before the next claim, if no slot ends before.
    async fn fill_slots(&self, state: &mut State, mut reserved: Reserved) -> Option<Duration> {
        let leased = self.leased();
        let want = reserved.count();
        // Leases need a connection for the claim alone.
        let connections = if leased { 1 } else { want };
        let (mut claimed, asked_at) = match self.claim(state, want, connections).await {
            Ok(claimed) => claimed,
            Err(error) => {
                self.shared.report(&error);
                state.claimed(false);
                state.spare.clear();
                (state.busy, state.reach) = (false, 1);
                self.slots.more(false);
                let pause = state.backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
                state.backoff = (state.backoff * 2).min(BACKOFF.1);
                return Some(pause);
            }
        };
        state.backoff = BACKOFF.0;
        let brought = claimed.jobs.len();
        for claim in claimed.jobs {
            let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
            let jobs = [&[claim.job], &*claim.behind].concat();
            let mut run = Run::new(shared, queue, claim);
            let known: HashMap<_, _> =
                jobs.iter().filter_map(|job| claimed.known.remove_entry(job)).collect();
            if !leased && !self.slots.bounded() {
                state.prefetch.push(Waiting { run, known }, asked_at);
                continue;
            }
            let slot = state.occupancy.take(reserved.start());
            if leased {
                let (pool, kept) = (self.pool.clone(), run.kept(&known, asked_at));
                state.slots.spawn(async move {
                    run.into_end_leased(known, pool, kept, slot).await;
                    (End::Finished, None)
                });
            } else if let Some(conn) = state.for_job() {
                state.slots.spawn(async move {
                    let ended = run.into_end(known, conn).await;
                    drop(slot);
                    ended
                });
            }
        }
        self.start_waiting(state);
        // The connections of those that ended meanwhile do as well.
        let mut passed = false;
        while !state.prefetch.is_empty()
            && let Some(ended) = state.slots.try_join_next()
        {
            passed |= state.ended(ended) != End::Drained;
            self.start_waiting(state);
        }
        state.prefetch.give_back_impatient();
        passed |= state.claimed(claimed.more && brought > 0);
        if brought > 0 {
            state.again.claimed(Instant::now(), state.busy || brought > 1);
        }
        state.busy = claimed.more && brought > 0;
        // A slot that is shared is not kept from others until the next look.
        state.quiet = claimed.all && !self.slots.bounded();
        state.reach = if state.busy { state.reach.saturating_mul(REACH) } else { 1 };
        self.slots.more(state.busy);
        if !state.busy || leased {
            // Nothing to hold connections for. Those that are still coming go back when they come.
            let kept = self.kept(state);
            state.keep(kept);
            state.coming.detach_all();
        }
        match (claimed.more, brought) {
            (true, 1..) if self.free(state) > 0 && state.prefetch.is_empty() => {
                Some(Duration::ZERO)
            }
            (false, _) if passed => Some(Duration::ZERO),
            (true, _) => Some(SOON.mul_f64(1.0 + fastrand::f64())),
            (false, _) => {
                // A little apart, so that many processes do not poll in step.
                let poll = self.poll.mul_f64(0.9 + fastrand::f64() * 0.1);
                Some(claimed.next.map_or(poll, |next| next.min(poll)))
            }
        }
    }

    /// Claims up to `want` jobs, with one of so many connections; of jobs that need one each, as many as there are.
    /// Also gives the time from which on their leases count.
    async fn claim(
        &self,
        state: &mut State,
        want: usize,
        connections: usize,
    ) -> Result<(Claimed, Instant), BackgroundError> {
        let queue = || self.queue.name.to_string();
        self.pulse.begins(Doing::Connecting);
        self.connect(state, connections)
            .await
            .map_err(|source| BackgroundError::Connection { queue: queue(), source })?;
        if self.stop.is_cancelled() || (self.leased() && !self.shared.leases.may_claim()) {
            // It was told to stop while it waited for a connection, or is not seen any more.
            return Ok((Claimed::default(), Instant::now()));
        }
        let slots = if connections < want { want } else { state.spare.len().min(want) };
        let most = self.queue.options.concurrency;
        // Not while slots that are free have no connection.
        let all = state.reach >= most && slots == want;
        let ahead = state.busy && all && !self.leased() && !self.slots.bounded();
        let room = state.prefetch.claims(most);
        state.course.ahead = if ahead { room } else { 0 };
        let Some(mut conn) = state.for_claim() else {
            return Ok((Claimed::default(), Instant::now()));
        };
        self.pulse.begins(Doing::Claiming);
        let asked_at = Instant::now();
        let claim = claim::claim(
            &self.shared.store,
            &mut conn,
            &self.queue.options,
            slots,
            Some(self.shared.processor),
            &mut state.course,
        );
        match timeout(CLAIM_LIMIT, claim).await {
            Ok(Ok(claimed)) => {
                state.course.thorough = claimed.thorough;
                conn.claims = true;
                state.spare.push(conn);
                Ok((claimed, asked_at))
            }
            failed => {
                state.course.thorough = true;
                if self.leased() {
                    state.strays = strays::from(Instant::now());
                }
                conn.close();
                Err(match failed {
                    Ok(Err(source)) if lacks_tables(&source) => BackgroundError::NotMigrated {
                        queue: queue(),
                        schema: self.shared.store.names().schema().to_owned(),
                        source,
                    },
                    Ok(Err(source)) => {
                        BackgroundError::Claim { queue: queue(), source: quiet(source) }
                    }
                    _ => BackgroundError::TooSlow { activity: "a claim", limit: CLAIM_LIMIT },
                })
            }
        }
    }

    /// Gets up to `want` connections together: waits for the first one, and a moment for the others. Those of jobs that
    /// end meanwhile do as well.
    async fn connect(&self, state: &mut State, want: usize) -> Result<(), sqlx::Error> {
        let begun = Instant::now();
        while state.spare.len() < want {
            while state.coming.len() < (want - state.spare.len()).min(OPENED_TOGETHER) {
                state.coming.spawn(self.pool.acquire());
            }
            let limit = if state.spare.is_empty() { FIRST_CONNECTION } else { MORE_CONNECTIONS };
            tokio::select! {
                Some(came) = state.coming.join_next() => match came {
                    Ok(Ok(conn)) => state.spare.push(conn.into()),
                    Ok(Err(error)) if state.spare.is_empty() => return Err(error),
                    // Another one is asked for by the next claim that wants it.
                    _ => break,
                },
                Some(ended) = state.slots.join_next() => {
                    state.ended(ended);
                }
                () = sleep_until(begun + limit) => {
                    if state.spare.is_empty() {
                        return Err(sqlx::Error::PoolTimedOut);
                    }
                    break;
                }
            }
        }
        Ok(())
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
                () = state.occupancy.freed(), if !state.quiet => {}
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

/// 42P01, 42703 and 3F000: no such table, column or schema.
fn lacks_tables(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["42P01", "42703", "3F000"].contains(&&*code))
}

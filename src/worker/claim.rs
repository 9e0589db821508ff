//! One claim of a worker: its connections, and the start of the claimed turns.

use std::collections::VecDeque;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use sqlx::PgConnection;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};

use crate::attempt::connection::SlotConnection;
use crate::attempt::turn::{ClaimedTurn, TurnEnd};
use crate::error::BackgroundError;
use crate::job::redact::redact_detail;
use crate::job::stall::Activity;
use crate::liveness::context::is_of_read_only;
use crate::liveness::side_pool::why_none;
use crate::slots::queue_slots::ReservedSlots;
use crate::store::{ClaimAnswer, ClaimBounds, ClaimOptions, cannot_read, gave_up_waiting};
use crate::worker::orphans;
use crate::worker::prefetch::PrefetchedTurn;
use crate::worker::state::{BACKOFF, KEEP_SLOTS, WorkerState};
use crate::worker::wait::Pause;
use crate::worker::worker::Worker;

/// Bounds a claim. A slower claim has lost its server, or is too large for it.
const CLAIM_LIMIT: Duration = Duration::from_secs(5);
/// Delay after a claim that saw more work than it could take.
const SOON: Duration = Duration::from_millis(20);
/// Bounds the growth of the reach from claim to claim: a lone job must not cost a connection for
/// each slot.
const REACH: usize = 4;

/// The findings of a claim of a worker.
enum Looked {
    Claimed(ClaimAnswer),
    /// A recheck saw that nothing is due before `next`: there was no claim.
    Nothing {
        next: Option<Duration>,
    },
}

impl Worker {
    /// Claims for the reserved slots. Returns how long to wait for the next claim, if no slot ends
    /// before.
    pub(crate) async fn claim_and_start(
        &self,
        state: &mut WorkerState,
        mut reserved: ReservedSlots,
    ) -> Pause {
        let want = reserved.count();
        // Leases need a connection for the claim alone.
        let connections = if self.leased() { 1 } else { want };
        let (mut claimed, asked_at) = match self.claim(state, &mut reserved, connections).await {
            Ok(Some(claimed)) => claimed,
            Ok(None) => return Pause::For(Duration::ZERO),
            Err(error) => return self.back_off(state, error),
        };
        state.backoff = BACKOFF.0;
        let brought = claimed.jobs.len();
        let burst = state.busy || shows_burst(&claimed);
        self.start_claimed(state, &mut claimed, &mut reserved, asked_at);
        let mut passed = self.take_back_ended(state);
        state.prefetch.release_urgent();
        passed |= state.end_claim(claimed.more && brought > 0);
        if brought > 0 {
            let now = Instant::now();
            state.recheck.record_claim(now, burst);
            state.last_job = Some(now);
        }
        state.limited = claimed.limited.unwrap_or(state.limited);
        self.prepare_next_claim(state, claimed.more, brought > 0);
        match (claimed.more, brought) {
            (true, 1..) if self.free(state) > 0 && state.prefetch.is_empty() => {
                Pause::For(Duration::ZERO)
            }
            (false, _) if passed => Pause::For(Duration::ZERO),
            (true, _) => Pause::For(SOON.mul_f64(1.0 + fastrand::f64())),
            (false, _) => Pause::Poll { next: claimed.next },
        }
    }

    /// Reports a claim that failed, and gives up what it may have hung on. Returns how long to
    /// wait.
    fn back_off(&self, state: &mut WorkerState, error: BackgroundError) -> Pause {
        self.vitals.record_failed_claim();
        let too_large = matches!(error, BackgroundError::TooSlow { .. });
        let no_connection = matches!(error, BackgroundError::Connection { .. });
        let read_only = is_of_read_only(&error);
        // One that times out again is told once.
        if !too_large || state.cursor.halve() {
            self.context.report(error);
        }
        if read_only {
            self.leave_server(state);
        }
        state.end_claim(false);
        state.keep_slots = KEEP_SLOTS;
        state.spare.clear();
        if no_connection && self.pool_has_room() {
            // A connection that died hangs, and would be waited for again.
            state.coming.detach_all();
        }
        (state.busy, state.reach) = (false, 1);
        self.slots.set_more(false);
        let pause = state.backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
        state.backoff = (state.backoff * 2).min(BACKOFF.1);
        Pause::For(pause)
    }

    /// Starts the claimed turns in the reserved slots, or as prefetched ones in slots of the
    /// queue's own.
    fn start_claimed(
        &self,
        state: &mut WorkerState,
        claimed: &mut ClaimAnswer,
        reserved: &mut ReservedSlots,
        asked_at: Instant,
    ) {
        let leased = self.leased();
        for claim in claimed.jobs.drain(..) {
            let (context, queue) = (Arc::clone(&self.context), Arc::clone(&self.queue));
            let jobs: VecDeque<_> = claimed.loaded.drain(..=claim.followers.len()).collect();
            let mut run = ClaimedTurn::new(context, queue, claim);
            run.origin.clone_from(&state.options);
            let guard = leased.then(|| run.guard_lease(jobs.front(), asked_at));
            let waiting = PrefetchedTurn { run, jobs, guard };
            if self.slots.bounded() {
                let slot = state.slot_usage.take(reserved.take_slot());
                self.start(state, waiting, slot);
            } else {
                state.prefetch.push(waiting, asked_at);
            }
        }
        self.start_prefetched(state);
    }

    /// Starts prefetched turns on the connections of jobs that ended meanwhile. Returns whether one
    /// of those jobs has passed its group's turn on.
    fn take_back_ended(&self, state: &mut WorkerState) -> bool {
        let mut passed = false;
        while !state.prefetch.is_empty()
            && let Some(ended) = state.slots.try_join_next()
        {
            passed |= self.take_back(state, ended) != TurnEnd::Drained;
            self.start_prefetched(state);
        }
        passed
    }

    /// Sizes the next claim by what this one left and brought, and gives back the connections that
    /// no job needs.
    fn prepare_next_claim(&self, state: &mut WorkerState, more: bool, brought: bool) {
        state.busy = more && brought;
        // A shared slot is not kept from other queues until the next poll.
        state.all_taken = !more && !self.slots.bounded();
        state.reach = if state.busy { state.reach.saturating_mul(REACH) } else { 1 };
        self.slots.set_more(state.busy);
        if !state.busy || self.leased() {
            // No job needs the connections. The ones that are still opening go back to the pool.
            let spares = self.spares(state);
            state.keep_spare(spares);
            state.coming.detach_all();
        }
    }

    /// Gets connections for a claim. Returns whether that took so long that its shared slots went
    /// to others.
    async fn connect_in_time(
        &self,
        state: &mut WorkerState,
        reserved: &mut ReservedSlots,
        connections: usize,
    ) -> Result<bool, sqlx::Error> {
        let keep_slots = state.keep_slots;
        let mut connected = pin!(self.connect(state, connections));
        if !self.slots.bounded() {
            return connected.await.map(|()| false);
        }
        if let Ok(connected) = timeout(keep_slots, &mut connected).await {
            return connected.map(|()| false);
        }
        reserved.give_back();
        self.slots.set_more(false);
        loop {
            tokio::select! {
                biased;
                connected = &mut connected => return connected.map(|()| true),
                // Its jobs that end meanwhile get it slots, which nobody would use.
                () = self.slots.given() => self.slots.set_more(false),
            }
        }
    }

    /// Claims; a recheck looks first.
    async fn look_and_claim(
        &self,
        conn: &mut PgConnection,
        look: bool,
        bounds: ClaimBounds,
        options: ClaimOptions,
    ) -> Result<Looked, sqlx::Error> {
        let (store, queue) = (&self.context.store, &*self.queue.name);
        if look {
            match store.due_in(conn, queue).await {
                // The session's transactions may only read, or be serializable: a claim asks for
                // another one.
                Ok(Some(Duration::ZERO)) | Err(sqlx::Error::Database(_)) => {}
                Ok(next) => return Ok(Looked::Nothing { next }),
                Err(error) => return Err(error),
            }
        }
        store.claim(conn, queue, bounds, options).await.map(Looked::Claimed)
    }

    /// Records the answer of a claim, or of the look instead of it.
    fn record(
        &self,
        state: &mut WorkerState,
        conn: &mut SlotConnection,
        looked: Looked,
        (bounds, asked_at): (ClaimBounds, Instant),
    ) -> ClaimAnswer {
        let now = Instant::now();
        self.context.record_answer();
        let mut claimed = match looked {
            Looked::Claimed(claimed) => claimed,
            Looked::Nothing { next } => {
                self.vitals.record_claim(now, None);
                return ClaimAnswer { next, ..ClaimAnswer::default() };
            }
        };
        if !conn.has_claimed {
            // The session has compiled the functions, and planned their statements.
            claimed.read_for = Duration::ZERO;
        }
        conn.has_claimed = true;
        claimed.next = state.cursor.record(&claimed, bounds);
        self.vitals.record_claim(now, due_lag(&claimed));
        let (jobs, taken_over) = (claimed.loaded.len(), &*claimed.taken_over);
        self.queue.meter.record_claim(now - asked_at, jobs, taken_over);
        claimed
    }

    /// Claims jobs for the reserved slots on one of `connections`; by transaction as many jobs as
    /// there are connections. Also returns the time from which their leases count. `None` if the
    /// slots went to others before there was a connection.
    pub(crate) async fn claim(
        &self,
        state: &mut WorkerState,
        reserved: &mut ReservedSlots,
        connections: usize,
    ) -> Result<Option<(ClaimAnswer, Instant)>, BackgroundError> {
        let want = reserved.count();
        self.heartbeat.begin_step(Activity::Connecting);
        match self.connect_in_time(state, reserved, connections).await {
            Ok(false) => {}
            Ok(true) => {
                // A far server, or a pool that is slow: else the slots would come and go for ever.
                state.keep_slots = (state.keep_slots * 2).min(CLAIM_LIMIT);
                return Ok(None);
            }
            Err(error) => {
                let source = why_none(&self.pool, error).await;
                let queue = self.queue.name.to_string();
                return Err(BackgroundError::Connection { queue, source });
            }
        }
        if self.stop.is_cancelled() || !self.may_claim() {
            // The worker was told to stop while it waited for a connection, or its presence is
            // unproven.
            return Ok(Some((ClaimAnswer::default(), Instant::now())));
        }
        let slots = if connections < want { want } else { state.spare.len().min(want) };
        let limit = self.queue.options.concurrency;
        // Not while free slots have no connection.
        let all = self.leased() || (state.reach >= limit && slots == want);
        // A job that is claimed ahead is in flight, and has been counted as a start.
        let prefetch = state.busy && all && !self.slots.bounded() && !state.limited;
        let room = state.prefetch.begin_claim();
        let prefetch = if prefetch { room } else { 0 };
        if slots + prefetch == 0 {
            return Ok(Some((ClaimAnswer::default(), Instant::now())));
        }
        let Some(mut conn) = state.for_claim() else {
            return Ok(Some((ClaimAnswer::default(), Instant::now())));
        };
        self.heartbeat.begin_step(Activity::Claiming);
        let asked_at = Instant::now();
        let bounds = state.cursor.bounds(slots + prefetch);
        let options = ClaimOptions {
            // Shared slots go to queues by their weights, job by job.
            jobs_per_turn: if self.slots.bounded() { 1 } else { self.queue.time_slice.jobs() },
            ..ClaimOptions::new(&self.queue.options, Some(self.context.processor))
        };
        // One that reads past much is left to the claim's cursor.
        let look = mem::take(&mut state.recheck.ended_wait) && state.cursor.short_read();
        let claimed = self.claim_on(state, &mut conn, look, bounds, options).await;
        match claimed {
            Ok(Ok(looked)) => {
                let claimed = self.record(state, &mut conn, looked, (bounds, asked_at));
                state.spare.push(conn);
                Ok(Some((claimed, asked_at)))
            }
            // The locked rows are free for others again. The next claim is soon.
            Ok(Err(error)) if gave_up_waiting(&error) => {
                state.spare.push(conn);
                Ok(Some((ClaimAnswer { more: true, ..ClaimAnswer::default() }, asked_at)))
            }
            failed => {
                conn.close();
                Err(self.failed_claim(state, failed.ok().and_then(Result::err)))
            }
        }
    }

    /// Claims on this connection within the limit, and starts prefetched turns meanwhile. Shared
    /// slots go to other queues if it takes long.
    async fn claim_on(
        &self,
        state: &mut WorkerState,
        conn: &mut SlotConnection,
        look: bool,
        bounds: ClaimBounds,
        options: ClaimOptions,
    ) -> Result<Result<Looked, sqlx::Error>, Elapsed> {
        let asked_at = Instant::now();
        let claim = self.look_and_claim(conn, look, bounds, options);
        let mut claim = pin!(timeout(CLAIM_LIMIT, claim));
        let bounded = self.slots.bounded();
        let mut competes = bounded;
        loop {
            tokio::select! {
                biased;
                claimed = &mut claim => return claimed,
                () = state.slot_usage.freed(), if self.may_start_during_claim(state) => self.start_during_claim(state),
                () = sleep_until(asked_at + KEEP_SLOTS), if competes => {
                    self.slots.set_more(false);
                    competes = false;
                }
                () = self.slots.given(), if bounded && !competes => self.slots.set_more(false),
            }
        }
    }

    /// Notes a claim that failed, or that took too long (`None`). Returns what to report.
    fn failed_claim(
        &self,
        state: &mut WorkerState,
        failed: Option<sqlx::Error>,
    ) -> BackgroundError {
        if failed.as_ref().is_some_and(cannot_read) {
            state.cursor.leave_data_out();
        }
        if self.leased() {
            state.orphan_checks = orphans::from(Instant::now());
        }
        let queue = self.queue.name.to_string();
        match failed {
            None => BackgroundError::TooSlow { activity: "a claim", limit: CLAIM_LIMIT },
            Some(source) if lacks_tables(&source) => BackgroundError::NotMigrated {
                queue,
                schema: self.context.store.names().schema().to_owned(),
                source,
            },
            Some(source) => BackgroundError::Claim { queue, source: redact_detail(source) },
        }
    }
}

/// Returns whether a claim shows a burst: many jobs, or more groups than workers that take one
/// each.
fn shows_burst(claimed: &ClaimAnswer) -> bool {
    let grouped = || claimed.jobs.iter().any(|claim| claim.group.is_some());
    claimed.jobs.len() > 1 || (claimed.more && grouped())
}

/// Returns how long the claimed jobs had been due, at most; `None` if there are none.
fn due_lag(claimed: &ClaimAnswer) -> Option<Duration> {
    let first = claimed.loaded.iter().map(|job| job.run_at).min()?;
    // The clocks of this machine and of the database may differ.
    Some((Utc::now() - first).to_std().unwrap_or_default())
}

/// Returns whether a table, column or schema is missing: 42P01, 42703 or 3F000.
fn lacks_tables(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["42P01", "42703", "3F000"].contains(&&*code))
}

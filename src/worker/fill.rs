//! One claim of a worker: its connections, and what becomes of what it brings.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::attempt::run::{End, Run};
use crate::error::BackgroundError;
use crate::job::redact::quiet;
use crate::job::stall::Doing;
use crate::slots::queue_slots::Reserved;
use crate::worker::claim::{self, Claimed};
use crate::worker::connections::State;
use crate::worker::orphans;
use crate::worker::prefetch::Waiting;
use crate::worker::worker::{Pause, Worker};

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
/// A lone job, behind which nothing follows, must not cost a connection for each slot.
const REACH: usize = 4;
/// After a claim that failed; doubled up to the second.
pub(in crate::worker) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(2));

impl Worker {
    /// Claims for the reserved slots; how long to wait before the next claim, if no slot ends before.
    pub(in crate::worker) async fn fill_slots(
        &self,
        state: &mut State,
        mut reserved: Reserved,
    ) -> Pause {
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
                if matches!(error, BackgroundError::Connection { .. }) && self.pool_has_room() {
                    // What hangs is a connection that died, and would be waited for again.
                    state.coming.detach_all();
                }
                (state.busy, state.reach) = (false, 1);
                self.slots.more(false);
                state.occupancy.serves_all(false);
                let pause = state.backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
                state.backoff = (state.backoff * 2).min(BACKOFF.1);
                return Pause::For(pause);
            }
        };
        state.backoff = BACKOFF.0;
        let brought = claimed.jobs.len();
        // What waits in the process waits for a slot as well.
        let room = state.prefetch.is_empty() && brought <= self.free(state);
        state.occupancy.serves_all(claimed.all && room && !self.slots.bounded());
        // Where each of many workers takes one group, what is left over shows it.
        let grouped = claimed.jobs.iter().any(|claim| claim.group.is_some());
        let burst = state.busy || brought > 1 || (claimed.more && grouped);
        for claim in claimed.jobs {
            let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
            let jobs = [&[claim.job], &*claim.behind].concat();
            let mut run = Run::new(shared, queue, claim);
            let known: HashMap<_, _> =
                jobs.iter().filter_map(|job| claimed.known.remove_entry(job)).collect();
            let kept = leased.then(|| run.kept(&known, asked_at));
            let waiting = Waiting { run, known, kept };
            if self.slots.bounded() {
                let slot = state.occupancy.take(reserved.start());
                self.start(state, waiting, slot);
            } else {
                state.prefetch.push(waiting, asked_at);
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
            state.again.claimed(Instant::now(), burst);
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
                Pause::For(Duration::ZERO)
            }
            (false, _) if passed => Pause::For(Duration::ZERO),
            (true, _) => Pause::For(SOON.mul_f64(1.0 + fastrand::f64())),
            (false, _) => Pause::Poll { next: claimed.next },
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
        let all = self.leased() || (state.reach >= most && slots == want);
        let ahead = state.busy && all && !self.slots.bounded();
        let room = state.prefetch.claims();
        state.course.ahead = if ahead { room } else { 0 };
        if slots + state.course.ahead == 0 {
            return Ok((Claimed::default(), Instant::now()));
        }
        let Some(mut conn) = state.for_claim() else {
            return Ok((Claimed::default(), Instant::now()));
        };
        self.pulse.begins(Doing::Claiming);
        let asked_at = Instant::now();
        let mut course = std::mem::take(&mut state.course);
        let claimed = {
            let claim = claim::claim(
                &self.shared.store,
                &mut conn,
                &self.queue.options,
                slots,
                Some(self.shared.processor),
                &mut course,
            );
            let mut claim = pin!(timeout(CLAIM_LIMIT, claim));
            loop {
                tokio::select! {
                    biased;
                    claimed = &mut claim => break claimed,
                    () = state.occupancy.freed(), if self.passes_on(state) => self.pass_on(state),
                }
            }
        };
        state.course = course;
        match claimed {
            Ok(Ok(claimed)) => {
                state.course.thorough = claimed.thorough;
                conn.claims = true;
                state.spare.push(conn);
                Ok((claimed, asked_at))
            }
            failed => {
                state.course.thorough = true;
                if self.leased() {
                    state.strays = orphans::from(Instant::now());
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

    /// Whether whoever asks for a connection gets one, and does not wait for others to give theirs back.
    fn pool_has_room(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }

    /// Whether slots that come free during a claim go to jobs that wait: by transaction they go on by themselves.
    fn passes_on(&self, state: &State) -> bool {
        self.leased() && !state.prefetch.is_empty() && !self.stop.is_cancelled()
    }

    fn pass_on(&self, state: &mut State) {
        self.start_waiting(state);
        if self.free(state) > 0 && state.prefetch.is_empty() {
            // Whoever waits for the next one is to hear of it.
            state.occupancy.still_free();
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
                () = state.occupancy.freed(), if self.passes_on(state) => self.pass_on(state),
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
}

/// 42P01, 42703 and 3F000: no such table, column or schema.
fn lacks_tables(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| ["42P01", "42703", "3F000"].contains(&&*code))
}

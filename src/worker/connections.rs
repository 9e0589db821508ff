//! Connections for claims and slots. By transaction, claims stay on a connection that claimed
//! before: a session's first claim takes longer, because it plans the statements.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::attempt::connection::SlotConnection;
use crate::job::stall::Activity;
use crate::liveness::side_pool::led_elsewhere;
use crate::primary::is_followed;
use crate::slots::queue_slots::QUICK;
use crate::worker::destination::Destination;
use crate::worker::state::WorkerState;
use crate::worker::worker::Worker;

/// The number of connections that a queue keeps under a transaction hold while jobs follow each
/// other: for the next job and its recheck.
const KEPT: usize = 2;
/// How long they are kept after the last job. Then the application can have them.
const KEEP_FOR: Duration = Duration::from_secs(2);
/// Bounds a claim's wait for its first connection, and for each further one.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);
const MORE_CONNECTIONS: Duration = Duration::from_millis(20);
/// Bounds the preparation of a session, and the wait for its connection: other queues may have all
/// of the pool.
const WARM_UP: Duration = Duration::from_secs(1);
const WARM_UP_CONNECTION: Duration = Duration::from_millis(100);
/// Bounds the connections that a queue opens together: hundreds would keep a small server from all
/// else for seconds, the monitor's checks too.
const OPENED_TOGETHER: usize = 32;

impl WorkerState {
    /// Gives back all but `limit` spare connections, unused ones first: they would cost more to
    /// prepare.
    pub(crate) fn keep_spare(&mut self, limit: usize) {
        let excess = self.spare.len().saturating_sub(limit);
        if excess > 0 {
            self.spare.sort_by_key(|conn| u8::from(conn.watched) + u8::from(conn.has_claimed));
            self.spare.drain(..excess);
        }
    }

    /// Returns how many connections to keep for the next job: none if the last one is long over.
    fn kept_for_next(&self, now: Instant) -> usize {
        if self.last_job.is_some_and(|at| now < at + KEEP_FOR) { KEPT } else { 0 }
    }

    /// Returns when to give back spare connections that no job will have used by then; `None` if
    /// there are none.
    pub(crate) fn trim_at(&self, now: Instant) -> Option<Instant> {
        let soon = now + QUICK;
        match self.spare.len() {
            0 => None,
            // Connections that were kept for jobs that ended lately.
            spare if spare > KEPT => Some(soon),
            _ => Some(self.last_job.map_or(soon, |at| (at + KEEP_FOR).max(soon))),
        }
    }

    /// Returns a connection for a claim: one that claimed before, if there is one.
    pub(crate) fn for_claim(&mut self) -> Option<SlotConnection> {
        let claims = self.spare.iter().position(|conn| conn.has_claimed);
        claims.map(|claims| self.spare.swap_remove(claims)).or_else(|| self.spare.pop())
    }

    /// Returns a connection for a job: if possible, one that has not claimed.
    pub(crate) fn for_job(&mut self) -> Option<SlotConnection> {
        let other = self.spare.iter().rposition(|conn| !conn.has_claimed);
        other.map(|other| self.spare.swap_remove(other)).or_else(|| self.spare.pop())
    }
}

impl Worker {
    /// Returns the number of connections to keep: for the next job and its recheck if jobs follow
    /// each other, and for as many jobs as ended lately. Opening one costs round trips, and each
    /// slot of the queue's own may keep one.
    pub(crate) fn spares(&self, state: &WorkerState) -> usize {
        let own = !self.leased() && !self.slots.bounded();
        let now = Instant::now();
        let lately = || state.slot_usage.quick_ends(now).max(state.kept_for_next(now));
        if own { self.free(state).min(lately()) } else { 0 }
    }

    /// Returns whether the pool has a connection for a caller now, without waiting for another to
    /// be given back.
    pub(crate) fn pool_has_room(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }

    /// Closes the connections that no job uses, those of the pool too: they lead to a server that
    /// is read-only, or that the pool has left.
    pub(crate) fn leave_server(&self, state: &mut WorkerState) {
        state.spare.drain(..).for_each(SlotConnection::close);
        // Slots on the next connections would not find these claims.
        state.prefetch.release_all();
        // Nothing is lost with the connections that are being opened.
        state.coming = JoinSet::new();
        while let Some(mut idle) = self.pool.try_acquire() {
            idle.close_on_drop();
        }
    }

    /// Returns where the pool leads now. Leaves the server of before, if the pool has.
    fn follow(&self, state: &mut WorkerState) -> Arc<PgConnectOptions> {
        let options = self.pool.connect_options();
        if state.options.as_ref().is_some_and(|before| !Arc::ptr_eq(before, &options)) {
            self.leave_server(state);
            let mixed = !is_followed(&options);
            state.destination = mixed.then(|| Arc::new(Destination::new(&options)));
        }
        state.options = Some(Arc::clone(&options));
        options
    }

    /// Prepares the session of the first claim before the process is ready. Not for long, as a
    /// claim works without it, and not through a pooler, which gives the claim another session.
    pub(crate) async fn warm_up(&self, state: &mut WorkerState) {
        self.heartbeat.begin_step(Activity::Connecting);
        let begun = Instant::now();
        tokio::select! {
            _ = timeout_at(begun + WARM_UP_CONNECTION, self.connect(state, 1)) => {}
            () = self.stop.cancelled() => return,
        }
        let pooled = self.context.pooler_state.pooled.is_cancelled();
        let Some(mut conn) = state.spare.pop_if(|_| !pooled) else { return };
        let prepared = tokio::select! {
            prepared = timeout_at(begun + WARM_UP, self.context.store.warm_up(&mut conn)) => Some(prepared),
            () = self.stop.cancelled() => None,
        };
        if let Some(Ok(Ok(()))) = prepared {
            state.spare.push(conn);
        } else {
            tracing::debug!(queue = &*self.queue.name, ?prepared, "a session was not prepared");
            conn.close();
        }
    }

    /// Gets up to `want` connections together: waits for the first one, and a moment for the
    /// others. Connections of jobs that end meanwhile count as well.
    pub(crate) async fn connect(
        &self,
        state: &mut WorkerState,
        want: usize,
    ) -> Result<(), sqlx::Error> {
        let begun = Instant::now();
        loop {
            let options = self.follow(state);
            if state.spare.len() >= want {
                return Ok(());
            }
            while state.coming.len() < (want - state.spare.len()).min(OPENED_TOGETHER) {
                match state.destination.clone() {
                    None => state.coming.spawn(self.pool.acquire()),
                    Some(destination) => {
                        let (pool, context) = (self.pool.clone(), Arc::clone(&self.context));
                        let acquire =
                            async move { destination.acquire(&pool, &context.store).await };
                        state.coming.spawn(acquire)
                    }
                };
            }
            let limit = if state.spare.is_empty() { FIRST_CONNECTION } else { MORE_CONNECTIONS };
            tokio::select! {
                Some(came) = state.coming.join_next() => match came {
                    Ok(Ok(conn)) => {
                        let mut conn = SlotConnection::from(conn);
                        conn.options.clone_from(&state.options);
                        state.spare.push(conn);
                    }
                    Ok(Err(error)) if state.spare.is_empty() => return Err(error),
                    // The next claim that needs another connection asks for it.
                    _ => return Ok(()),
                },
                Some(ended) = state.slots.join_next() => {
                    self.take_back(state, ended);
                }
                () = state.slot_usage.freed(), if self.may_start_during_claim(state) => self.start_during_claim(state),
                // The server of before may refuse for as long as it is asked.
                () = led_elsewhere(&self.pool, &options) => {}
                () = sleep_until(begun + limit) => {
                    if state.spare.is_empty() {
                        return Err(sqlx::Error::PoolTimedOut);
                    }
                    return Ok(());
                }
            }
        }
    }
}

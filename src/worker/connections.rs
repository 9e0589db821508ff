//! The connections of a worker: how many it opens, keeps and gives back.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::attempt::connection::SlotConnection;
use crate::worker::state::WorkerState;
use crate::worker::worker::Worker;

/// How many connections an idle queue keeps that holds by transaction.
pub(in crate::worker) const KEPT: usize = 2;
/// How long a claim waits for its first connection, and for each further one.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);
const MORE_CONNECTIONS: Duration = Duration::from_millis(20);
/// How many connections a queue asks for at once: hundreds of new ones would keep a small server from everything else, the check
/// of the holds too, for seconds.
const OPENED_TOGETHER: usize = 32;
impl WorkerState {
    /// Gives back all but so many connections: first those that were used for nothing yet, which would cost some more.
    pub(in crate::worker) fn keep_spare(&mut self, limit: usize) {
        let excess = self.spare.len().saturating_sub(limit);
        if excess > 0 {
            self.spare.sort_by_key(|conn| u8::from(conn.watched) + u8::from(conn.claims));
            self.spare.drain(..excess);
        }
    }

    /// The connection for a claim: one that claimed before, if there is one.
    pub(in crate::worker) fn for_claim(&mut self) -> Option<SlotConnection> {
        let claims = self.spare.iter().position(|conn| conn.claims);
        claims.map(|claims| self.spare.swap_remove(claims)).or_else(|| self.spare.pop())
    }

    /// A connection for a job: if possible not the one that claims.
    pub(in crate::worker) fn for_job(&mut self) -> Option<SlotConnection> {
        let other = self.spare.iter().rposition(|conn| !conn.claims);
        other.map(|other| self.spare.swap_remove(other)).or_else(|| self.spare.pop())
    }
}

impl Worker {
    /// How many connections stay for the next job and the look behind it, and while jobs come one after the other for as many as
    /// ended lately: asking for one costs round trips, and there are as many as slots, unless those are shared.
    pub(in crate::worker) fn spares(&self, state: &WorkerState) -> usize {
        let own = !self.leased() && !self.slots.bounded();
        let lately = || state.slot_usage.quick_ends(Instant::now()).max(KEPT);
        if own { self.free(state).min(lately()) } else { 0 }
    }

    /// Whether whoever asks for a connection gets one, and does not wait for others to give theirs back.
    pub(in crate::worker) fn pool_has_room(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }

    /// Gets up to `want` connections together: waits for the first one, and a moment for the others. Those of jobs that
    /// end meanwhile do as well.
    pub(in crate::worker) async fn connect(
        &self,
        state: &mut WorkerState,
        want: usize,
    ) -> Result<(), sqlx::Error> {
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
                () = state.slot_usage.freed(), if self.may_start_during_claim(state) => self.start_during_claim(state),
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

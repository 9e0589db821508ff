//! Suspects orphaned claims: those whose answers were lost, those that were left to a take-over
//! because no server recorded their outcome in time, and those whose end was lost with a server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, timeout};

use crate::store::WorkConnection;
use crate::store::in_short_tx;
use crate::worker::state::WorkerState;
use crate::worker::worker::Worker;

/// When to check after a claim that failed. The claim may be committed at that moment, or later by
/// a server that waits for its standby.
const TIMES: [Duration; 2] = [Duration::from_secs(6), Duration::from_mins(1)];
/// Bounds one check for orphaned claims.
const LIMIT: Duration = Duration::from_secs(1);

/// Returns when to check after a claim that failed at `failed_at`.
pub(crate) fn from(failed_at: Instant) -> [Option<Instant>; 2] {
    TIMES.map(|time| Some(failed_at + time))
}

impl Worker {
    /// Suspects claims of this process that it does not know. While it lives, no failure detector
    /// would until their leases end. Runs between two claims, when all other claims are known.
    pub(crate) async fn suspect_orphans(&self, state: &mut WorkerState) {
        let now = Instant::now();
        // By transaction a claim stands for half a second, and needs no check.
        if self.leased() && self.queue.left_claim.swap(false, Ordering::Relaxed) {
            let [first, _] = &mut state.orphan_checks;
            first.get_or_insert(now + TIMES[0]);
        }
        let moves = self.context.leases.moves();
        if self.leased() && std::mem::replace(&mut state.moves, moves) != moves {
            state.orphan_checks[0] = Some(now);
        }
        let Some(at) = state.orphan_checks.iter_mut().find(|at| at.is_some_and(|at| at <= now))
        else {
            return;
        };
        let Some(known) = self.context.leases.proven_tokens() else {
            *at = Some(now + TIMES[0]);
            return;
        };
        let (store, id, queue) = (&self.context.store, self.context.processor, &*self.queue.name);
        let suspect = async {
            let mut conn = WorkConnection::from(self.context.side.acquire().await?);
            let suspect = async |conn: &mut PgConnection| {
                store.suspect_orphans(conn, id, queue, &known).await
            };
            let suspected = in_short_tx(&mut conn, suspect).await?;
            conn.done();
            Ok::<u64, sqlx::Error>(suspected)
        };
        match timeout(LIMIT, suspect).await {
            Ok(Ok(suspected)) => {
                *at = None;
                if suspected > 0 {
                    tracing::info!(
                        suspected,
                        queue,
                        "claims that this process does not know will be taken over"
                    );
                }
            }
            // The next failing claim reports more.
            _ => *at = Some(now + TIMES[0]),
        }
    }
}

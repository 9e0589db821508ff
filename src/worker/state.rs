//! What a worker remembers from claim to claim.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::attempt::connection::SlotConnection;
use crate::attempt::turn::TurnEnd;
use crate::slots::queue_slots::SlotUsage;
use crate::worker::claim_steps::ClaimCursor;
use crate::worker::prefetch::Prefetch;
use crate::worker::recheck::Recheck;

/// After a claim that failed; doubled up to the second.
pub(in crate::worker) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(2));

/// What a worker remembers from claim to claim.
pub(in crate::worker) struct WorkerState {
    /// Each says how it ended, and gives back its connection, if that can be used again.
    pub(in crate::worker) slots: JoinSet<(TurnEnd, Option<SlotConnection>)>,
    /// Of those, the ones whose handlers run or may run.
    pub(in crate::worker) slot_usage: Arc<SlotUsage>,
    /// Connections of finished jobs, for the next ones. A claim takes no more jobs than it has connections.
    pub(in crate::worker) spare: Vec<SlotConnection>,
    /// Connections that were asked for. In tasks of their own: opening one may take longer than a claim waits for it,
    /// and would begin anew each time if it was given up.
    pub(in crate::worker) coming: JoinSet<Result<PoolConnection<Postgres>, sqlx::Error>>,
    /// The last claim took all that it could.
    pub(in crate::worker) busy: bool,
    /// The last claim took all that was due: only a wake-up, or a job behind which others are, calls for a look.
    pub(in crate::worker) all_taken: bool,
    /// For how many slots the next claim gets connections: more and more, while each claim takes all that it can.
    pub(in crate::worker) reach: usize,
    pub(in crate::worker) cursor: ClaimCursor,
    pub(in crate::worker) backoff: Duration,
    pub(in crate::worker) recheck: Recheck,
    pub(in crate::worker) prefetch: Arc<Prefetch>,
    /// When to look for claims whose answers were lost.
    pub(in crate::worker) orphan_checks: [Option<Instant>; 2],
}

impl WorkerState {
    /// Of a worker that is woken by this.
    pub(in crate::worker) fn new(wake: &Arc<Notify>) -> Self {
        let slot_usage = Arc::default();
        let prefetch = Arc::new(Prefetch::new(Arc::clone(&slot_usage), Arc::clone(wake)));
        Self {
            slots: JoinSet::new(),
            slot_usage,
            spare: Vec::new(),
            coming: JoinSet::new(),
            busy: false,
            all_taken: false,
            reach: 1,
            cursor: ClaimCursor::default(),
            backoff: BACKOFF.0,
            recheck: Recheck::default(),
            prefetch,
            orphan_checks: [None; 2],
        }
    }

    /// Takes back a slot's connection; how its job ended.
    pub(in crate::worker) fn ended(
        &mut self,
        ended: Result<(TurnEnd, Option<SlotConnection>), JoinError>,
    ) -> TurnEnd {
        let (end, conn) = ended.unwrap_or((TurnEnd::Lost, None));
        self.recheck.ended(Instant::now());
        self.spare.extend(conn);
        end
    }

    /// A claim has ended, and left more or not; whether a job that ended meanwhile has passed its group's turn on.
    pub(in crate::worker) fn claimed(&mut self, more: bool) -> bool {
        let ended = self.prefetch.claimed(more);
        if ended.is_some() {
            self.recheck.ended(Instant::now());
        }
        ended.unwrap_or_default()
    }
}

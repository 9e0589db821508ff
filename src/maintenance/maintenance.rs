//! The tick of maintenance, by one process at a time: requests, halts, and in each round retention
//! and the sweep.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, PgPool};
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::job::job::JobStatus;
use crate::job::queue_options::{QueueOptions, Retention};
use crate::liveness::shared_poll::{LATE, PollTarget, SharedPoll};
use crate::store::WorkConnection;
use crate::store::{Store, begin_short};

/// Time between two polls for requests.
const TICK: Duration = Duration::from_secs(1);
/// Bounds a tick: one that takes longer has lost its server.
const LIMIT: Duration = Duration::from_secs(30);
/// Bounds deletions: finished jobs of each status in one transaction, and transactions per queue in
/// one round.
const BATCH: (i64, usize) = (500, 20);
/// Bounds the transactions that one tick makes for halted groups.
const HALTS: usize = 50;
/// Bounds the groups that the sweep visits per queue and round.
const SWEEP: usize = 200;

/// What a round of maintenance did for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MaintenanceReport {
    /// The number of finished jobs that retention deleted.
    pub(crate) deleted: u64,
    /// The number of groups that nothing would have woken.
    pub(crate) repaired: u64,
}

pub(crate) struct Maintenance<'a> {
    pub(crate) store: &'a Store,
    pub(crate) side: &'a PgPool,
    pub(crate) queues: Vec<QueueOptions>,
    /// Time between two rounds of retention and sweep.
    pub(crate) interval: Duration,
}

impl Maintenance<'_> {
    /// Runs ticks until `stop`.
    pub(crate) async fn run(
        &self,
        shared_poll: &Arc<SharedPoll>,
        stop: &CancellationToken,
        report: impl Fn(BackgroundError),
    ) {
        let mut round_at = Instant::now() + self.interval.mul_f64(fastrand::f64());
        let mut cursors = HashMap::new();
        loop {
            let round = Instant::now() >= round_at;
            if round {
                round_at = Instant::now() + self.interval;
            }
            match timeout(LIMIT, self.tick(round, &mut cursors)).await {
                Ok(Ok(kept)) => {
                    for (queue, MaintenanceReport { repaired, .. }) in kept {
                        if repaired > 0 {
                            report(BackgroundError::Stranded { queue, repaired });
                        }
                    }
                }
                Ok(Err(error)) => report(BackgroundError::Maintenance(error)),
                Err(_) => {
                    report(BackgroundError::TooSlow { activity: "maintenance", limit: LIMIT });
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.pause(round_at, shared_poll) => {}
            }
        }
    }

    /// Waits until the next tick, or until the shared poll finds something to do.
    async fn pause(&self, round_at: Instant, shared_poll: &Arc<SharedPoll>) {
        let now = Instant::now();
        let Some(poll_handle) = shared_poll.register(PollTarget::Maintenance, now, TICK, LATE)
        else {
            return sleep(TICK.min(self.interval)).await;
        };
        loop {
            let until = poll_handle.until().min(round_at);
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = poll_handle.changed() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    /// Handles requests and halts, and runs a round of retention and sweep if `round`. Returns what
    /// the round did, by queue.
    pub(crate) async fn tick(
        &self,
        round: bool,
        cursors: &mut HashMap<String, String>,
    ) -> Result<Vec<(String, MaintenanceReport)>, sqlx::Error> {
        let mut kept = Vec::new();
        let mut conn = WorkConnection::from(self.side.acquire().await?);
        let mut ours = true;
        if self.store.awaits_maintenance(&mut conn).await? {
            let requests = self
                .alone(&mut conn, async |conn| self.store.settle_requests(conn).await.map(drop));
            ours = requests.await?;
            if ours {
                self.end_halts(&mut conn).await?;
            }
        }
        if ours && round {
            self.forget_expired(&mut conn).await?;
            for queue in &self.queues {
                let deleted = self.prune(&mut conn, queue).await?;
                let cursor = cursors.entry(queue.name().to_owned()).or_default();
                let repaired = self.sweep(&mut conn, queue.name(), cursor).await?;
                kept.push((queue.name().to_owned(), MaintenanceReport { deleted, repaired }));
            }
        }
        conn.done();
        Ok(kept)
    }

    /// Runs `work` in a short transaction if no other process holds the leader lock. Returns
    /// whether it ran.
    async fn alone(
        &self,
        conn: &mut PgConnection,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<(), sqlx::Error>,
    ) -> Result<bool, sqlx::Error> {
        begin_short(conn).await?;
        let alone = self.store.lock_maintenance(conn).await?;
        if alone {
            work(conn).await?;
        }
        PgTransactionManager::commit(conn).await?;
        Ok(alone)
    }

    /// Ends halts whose deadline has passed, and parks jobs, in small transactions.
    async fn end_halts(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        for _ in 0..HALTS {
            let mut more = false;
            let batch = async |conn: &mut PgConnection| {
                more = self.store.end_halts(conn).await?;
                Ok(())
            };
            self.alone(conn, batch).await?;
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Deletes jobs that retention no longer keeps, in small batches.
    async fn prune(
        &self,
        conn: &mut PgConnection,
        queue: &QueueOptions,
    ) -> Result<u64, sqlx::Error> {
        let kept = [
            (JobStatus::Succeeded, queue.keep_succeeded),
            (JobStatus::Failed, queue.keep_failed),
            (JobStatus::Cancelled, queue.keep_cancelled),
        ];
        let mut left: Vec<_> = kept
            .into_iter()
            .filter_map(|(status, retention)| match retention {
                Retention::For(age) => Some((status, age)),
                // No settle deletes a job that was cancelled before it was claimed, say.
                Retention::Never => Some((status, Duration::ZERO)),
                Retention::Forever => None,
            })
            .collect();
        let mut total = 0;
        for _ in 0..BATCH.1 {
            if left.is_empty() {
                break;
            }
            let mut more = Vec::new();
            let batch = async |conn: &mut PgConnection| {
                for &(status, age) in &left {
                    let deleted =
                        self.store.prune(conn, queue.name(), status, age, BATCH.0).await?;
                    total += deleted;
                    if deleted >= BATCH.0.unsigned_abs() {
                        more.push((status, age));
                    }
                }
                Ok(())
            };
            self.alone(conn, batch).await?;
            left = more;
        }
        Ok(total)
    }

    /// Deletes deduplication ids whose window has ended, in small batches.
    async fn forget_expired(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        for _ in 0..BATCH.1 {
            let mut deleted = 0;
            let batch = async |conn: &mut PgConnection| {
                deleted = self.store.forget_expired(conn, BATCH.0).await?;
                Ok(())
            };
            self.alone(conn, batch).await?;
            if deleted < BATCH.0.unsigned_abs() {
                break;
            }
        }
        Ok(())
    }

    /// Visits the next groups with unfinished jobs, and makes those ready that nothing would wake.
    /// Returns their number.
    async fn sweep(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        cursor: &mut String,
    ) -> Result<u64, sqlx::Error> {
        let mut repaired = 0;
        let visit = async |conn: &mut PgConnection| {
            for _ in 0..SWEEP {
                let Some(group) = self.store.next_group(conn, queue, cursor).await? else {
                    cursor.clear();
                    break;
                };
                repaired += u64::from(self.store.rescue(conn, queue, &group).await?);
                *cursor = group;
            }
            Ok(())
        };
        self.alone(conn, visit).await?;
        Ok(repaired)
    }
}

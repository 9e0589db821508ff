//! Redrive: failed jobs of a queue, queued again.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{PgExecutor, PgPool};
use tokio::time::sleep;

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::name;
use crate::job::queue_options::QueueOptions;
use crate::maintenance::maintenance::Maintenance;
use crate::store::WorkConnection;
use crate::store::in_tx;

/// What a redrive queued again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Redriven {
    /// The number of jobs that are queued again.
    pub jobs: u64,
    /// The number of their groups; jobs without one are not counted.
    pub groups: u64,
    /// The number of later jobs of those groups that have already begun, of those that retention
    /// still keeps.
    pub overtaken: u64,
}

/// What a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Purged {
    /// The number of jobs that were cancelled.
    pub cancelled: u64,
    /// The number of running jobs: they were left alone.
    pub running: u64,
    /// The number of jobs that another transaction was changing all the while: they are queued
    /// still.
    pub locked: u64,
}

/// The claims that a release made suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Released {
    /// The number of groups.
    pub groups: u64,
    /// The number of jobs without a group.
    pub jobs: u64,
}

/// How often a purge comes back for locked jobs, and how long it waits in between.
const PASSES: (usize, Duration) = (10, Duration::from_millis(20));

impl Client {
    /// Queues failed jobs of a queue again, the oldest first and at most `limit`. Those of one
    /// group run in their original order, before all other jobs of the group. Their attempts begin
    /// anew, an expiry is cleared, and halts by them end. For one job there is
    /// [`retry`](Self::retry).
    ///
    /// Call it again for more than `limit`. [`Redriven::jobs`] is 0 once none is left. Beside
    /// workers whose jobs fail again, that may be never.
    ///
    /// Left out are jobs that others were parked with ([`redrive_parked`](Self::redrive_parked)),
    /// and those that another transaction is changing.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn redrive(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        most: u32,
    ) -> Result<Redriven, ControlError> {
        name::check_queue(queue)?;
        let report = self.store.redrive(executor, queue, most.into()).await?;
        Ok(Redriven { jobs: report.jobs, groups: report.groups, overtaken: report.overtaken })
    }

    /// Cancels all queued jobs of a queue that were there when the call began, in small
    /// transactions. Nothing is deleted, running and parked jobs are left alone, and a halted group
    /// stays halted.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`]: jobs that were cancelled until then stay
    /// so.
    ///
    /// # Cancel safety
    /// Not cancel safe: some jobs may be cancelled. Safe to repeat.
    pub async fn purge(&self, pool: &PgPool, queue: &str) -> Result<Purged, ControlError> {
        name::check_queue(queue)?;
        self.purge_some(pool, queue, None).await
    }

    /// As [`purge`](Self::purge), for one group.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn purge_group(
        &self,
        pool: &PgPool,
        queue: &str,
        group: &str,
    ) -> Result<Purged, ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        self.purge_some(pool, queue, Some(group)).await
    }

    async fn purge_some(
        &self,
        pool: &PgPool,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Purged, ControlError> {
        let store = &self.store;
        let mut conn = WorkConnection::from(pool.acquire().await?);
        let to = in_tx(&mut conn, async |conn| store.last_job(conn).await).await?;
        let mut purged = Purged::default();
        for pass in 0..PASSES.0 {
            if pass > 0 {
                // A claim locks a row for milliseconds.
                sleep(PASSES.1).await;
            }
            let mut after = Some((String::new(), 0));
            while let Some(from) = after {
                let purge =
                    async |conn: &mut _| store.purge_groups(conn, queue, group, to, &from).await;
                let batch = in_tx(&mut conn, purge).await?;
                purged.cancelled += batch.cancelled;
                after = batch.next;
            }
            let mut after = group.is_none().then_some((None, 0));
            while let Some(from) = after {
                let purge =
                    async |conn: &mut _| store.purge_ungrouped(conn, queue, to, &from).await;
                let batch = in_tx(&mut conn, purge).await?;
                purged.cancelled += batch.cancelled;
                after = batch.next;
            }
            let left = async |conn: &mut _| store.left(conn, queue, group, to).await;
            (purged.running, purged.locked) = in_tx(&mut conn, left).await?;
            if purged.locked == 0 {
                break;
            }
        }
        conn.done();
        Ok(purged)
    }

    /// Runs one round of maintenance for a queue without a processor, whose jobs are received by
    /// hand. It deletes what the retention of `queue` no longer keeps (up to 10,000 jobs of each
    /// status) and deduplication ids whose window has ended. It carries out requests to cancel and
    /// ends halts at their deadline. Call it at intervals; processors with maintenance do the same
    /// for their queues every 10 s. Only the retention of the options counts.
    ///
    /// Returns the number of deleted jobs; 0 if another process is running maintenance.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    ///
    /// # Cancel safety
    /// Cancel safe: what was done stays, the rest is for the next call.
    pub async fn run_maintenance(
        &self,
        pool: &PgPool,
        queue: QueueOptions,
    ) -> Result<u64, ControlError> {
        name::check_queue(queue.name())?;
        let queues = vec![queue];
        let maintenance =
            Maintenance { store: &self.store, side: pool, queues, interval: Duration::ZERO };
        let kept = maintenance.tick(true, &mut HashMap::new()).await?;
        Ok(kept.iter().map(|(_, kept)| kept.deleted).sum())
    }

    /// Says that a node is gone: the claims of its processors are suspected from now on, and are
    /// taken over 1.75 s later. `node` is the name of
    /// [`ProcessorBuilder::node`](crate::ProcessorBuilder::node), by default the host's. Jobs that
    /// were received by hand belong to no node.
    ///
    /// Harmless while the node lives: a job that a transaction holds is left alone, and the next
    /// extension of a lease clears the suspicion. Without this call a claim is suspected when its
    /// lease ends, or its processor's presence does.
    ///
    /// # Errors
    /// The database's.
    pub async fn release_node(
        &self,
        executor: impl PgExecutor<'_>,
        node: &str,
    ) -> Result<Released, sqlx::Error> {
        let (groups, jobs) = self.store.release_node(executor, node).await?;
        Ok(Released { groups, jobs })
    }
}

//! Operate: what is asked of many jobs at once.

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
    /// Jobs that are queued again.
    pub jobs: u64,
    /// Their groups; jobs without one are not counted.
    pub groups: u64,
    /// Later jobs of those groups that have already begun to run, of those that retention still keeps.
    pub overtaken: u64,
}

/// What a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Purged {
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that are running: they were left alone.
    pub running: u64,
    /// Jobs that another transaction was changing all the while: they are queued still.
    pub locked: u64,
}

/// Claims that a release put in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Released {
    /// Groups.
    pub groups: u64,
    /// Jobs without a group.
    pub jobs: u64,
}

/// How often a purge comes back for jobs that somebody had, and how long it waits in between.
const PASSES: (usize, Duration) = (10, Duration::from_millis(20));

impl Client {
    /// Queues dead jobs of a queue (failed ones) again, the oldest first and at most `most`: those of one group run in their
    /// original order, before whatever else waits in it. Their attempts begin anew, an expiry no longer counts, and groups
    /// that they had halted go on. For one job there is [`retry`](Self::retry).
    ///
    /// Call it again for more than `most`. [`Redriven::jobs`] is 0 when there was nothing left; beside workers whose jobs fail
    /// again, that may be never.
    ///
    /// Left out are jobs that others were parked with ([`redrive_parked`](Self::redrive_parked)), and those that another
    /// transaction is changing.
    ///
    /// # Errors
    /// [`ControlError::Name`], [`ControlError::Database`].
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

    /// Cancels all queued jobs of a queue, in small transactions: those that were there when the call began. Nothing is
    /// deleted, running and parked jobs are left alone, and a halted group stays halted. Not cancel safe, but safe to repeat.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`]: what was cancelled until then stays so.
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
                // A claim has a row for milliseconds.
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

    /// One round of maintenance for a queue on which no processor works, because its jobs are received by hand: deletes
    /// what its retention no longer keeps (up to 10,000 jobs of each status) and deduplication ids whose window is over,
    /// and ends what is to end by itself (requests to cancel, halts with a deadline). To be called now and then.
    /// Processors with maintenance do this for their queues every 10 s. Only the retention of the options counts.
    ///
    /// How many finished jobs it deleted; none as well if another process keeps house at this moment.
    ///
    /// # Cancel safety
    /// Safe: what was done stays, the rest is for the next call.
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

    /// Says that a node is gone: what its processors have claimed is in doubt from now on, and is taken over 1.75 s later.
    /// `node` is the name of [`ProcessorBuilder::node`](crate::ProcessorBuilder::node), by default the host's. What was
    /// received by hand belongs to no node.
    ///
    /// Harmless while the node lives: what a transaction holds is left alone, and a lease is cleared of the doubt by its
    /// next extension. Without this call a claim is in doubt when its lease ends, or its processor's presence does.
    pub async fn release_node(
        &self,
        executor: impl PgExecutor<'_>,
        node: &str,
    ) -> Result<Released, sqlx::Error> {
        let (groups, jobs) = self.store.release_node(executor, node).await?;
        Ok(Released { groups, jobs })
    }
}

//! Purge: cancels all queued jobs of a queue or group.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sqlx::{PgConnection, PgPool};
use tokio::time::sleep;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;
use crate::job::words::{counted, counted_are};
use crate::store::{WorkConnection, in_tx};

/// The result of a purge; prints as one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Purged {
    /// The number of jobs that were cancelled.
    pub cancelled: u64,
    /// The number of running jobs: they were left alone.
    pub running: u64,
    /// The number of jobs that another transaction was changing all the while: they are queued
    /// still.
    pub locked: u64,
    /// The number of deduplication ids that were forgotten, by
    /// [`Operator::purge_everything`].
    pub forgotten: u64,
}

impl fmt::Display for Purged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cancelled, running, locked, forgotten } = *self;
        write!(f, "{} cancelled", counted_are(cancelled, "job"))?;
        if forgotten > 0 {
            write!(f, "; {} forgotten", counted_are(forgotten, "deduplication id"))?;
        }
        match running {
            0 => Ok(()),
            1 => f.write_str("; 1 job runs on"),
            jobs => write!(f, "; {jobs} jobs run on"),
        }?;
        if locked > 0 {
            let locked = counted(locked, "job");
            write!(f, "; other transactions have {locked} locked, which stay queued: try again")?;
        }
        Ok(())
    }
}

/// Bounds the passes of a purge, which come back for locked jobs.
const PASSES: usize = 10;
/// Delay between two passes of a purge.
const BETWEEN_PASSES: Duration = Duration::from_millis(20);

impl Operator {
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
        self.purge_from(pool, queue, None, false).await
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
        self.purge_from(pool, queue, Some(group), false).await
    }

    /// As [`purge`](Self::purge), and also what is in flight: jobs that receivers have end as
    /// cancelled, and their receipts are stale; processors are asked to cancel theirs. The queue's
    /// deduplication ids are forgotten, so each may come again. `running` are those that processors
    /// still have.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    ///
    /// # Cancel safety
    /// As [`purge`](Self::purge).
    pub async fn purge_everything(
        &self,
        pool: &PgPool,
        queue: &str,
    ) -> Result<Purged, ControlError> {
        self.purge_from(pool, queue, None, true).await
    }

    async fn purge_from(
        &self,
        pool: &PgPool,
        queue: &str,
        group: Option<&str>,
        everything: bool,
    ) -> Result<Purged, ControlError> {
        let mut conn = WorkConnection::from(pool.acquire().await?);
        let purged = self.purge_some(&mut conn, queue, group, everything).await?;
        conn.done();
        Ok(purged)
    }

    /// Purges on a connection that is in no transaction.
    pub(crate) async fn purge_some(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
        everything: bool,
    ) -> Result<Purged, ControlError> {
        name::check_lane(queue, group)?;
        let (store, acting) = (self.store(), self.acting()?);
        let to = in_tx(conn, async |conn| store.last_job(conn).await).await?;
        let mut purged = Purged::default();
        for pass in 0..PASSES {
            if pass > 0 {
                // A claim locks a row for milliseconds.
                sleep(BETWEEN_PASSES).await;
            }
            let mut after = Some((String::new(), 0));
            while let Some(from) = after {
                let purge = async |conn: &mut _| {
                    store.purge_groups(conn, queue, group, to, &from, acting).await
                };
                let batch = in_tx(conn, purge).await?;
                purged.cancelled += batch.cancelled;
                after = batch.next;
            }
            let mut after = group.is_none().then_some((None, 0));
            while let Some(from) = after {
                let purge = async |conn: &mut _| {
                    store.purge_ungrouped(conn, queue, to, &from, acting).await
                };
                let batch = in_tx(conn, purge).await?;
                purged.cancelled += batch.cancelled;
                after = batch.next;
            }
            if everything {
                let purge =
                    async |conn: &mut _| store.purge_in_flight(conn, queue, to, acting).await;
                loop {
                    let (cancelled, asked) = in_tx(conn, purge).await?;
                    purged.cancelled += cancelled;
                    if cancelled + asked == 0 {
                        break;
                    }
                }
                let forget = async |conn: &mut _| store.forget_dedup_ids(conn, queue, to).await;
                loop {
                    let forgotten = in_tx(conn, forget).await?;
                    if forgotten == 0 {
                        break;
                    }
                    purged.forgotten += forgotten;
                }
            }
            let left = async |conn: &mut _| store.left(conn, queue, group, to).await;
            (purged.running, purged.locked) = in_tx(conn, left).await?;
            // Jobs received in between are in flight.
            if purged.locked == 0 && (!everything || purged.running == 0) {
                break;
            }
        }
        Ok(purged)
    }
}

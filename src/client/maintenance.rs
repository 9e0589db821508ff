//! Maintenance on request, for queues without a processor.

use std::time::Duration;

use sqlx::PgPool;

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::name;
use crate::job::queue_options::QueueOptions;
use crate::maintenance::maintenance::{Cursors, Maintenance};

impl Client {
    /// Runs one round of maintenance for a queue without a processor, whose jobs are received by
    /// hand. It deletes what the retention of `queue` no longer keeps (up to 10,000 jobs of each
    /// status), deduplication ids whose window has ended, and ended pauses of groups. It carries
    /// out requests to cancel, ends halts at their deadline, fires schedules that are due, ends
    /// batches and moves up to 1,000 jobs of each running move task. Call it at intervals;
    /// processors with maintenance do the same for their queues every 10 s. Only the retention of
    /// the options counts.
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
        let maintenance = Maintenance { store: &self.store, queues, interval: Duration::ZERO };
        let conn = pool.acquire().await?;
        let tick = maintenance.tick(conn, true, &mut Cursors::default()).await?;
        Ok(tick.reports.iter().map(|(_, report)| report.deleted).sum())
    }
}

//! Maintenance on request, for queues without a processor.

use std::time::Duration;

use sqlx::{PgConnection, PgPool};

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::maintained::Maintained;
use crate::job::name;
use crate::job::queue_options::QueueOptions;
use crate::job::redact::redact_detail;
use crate::maintenance::maintenance::{Cursors, Maintenance};
use crate::maintenance::schedules::fire_schedules;
use crate::store::{WorkConnection, gave_up_waiting, in_short_tx};

/// Bounds the calls of the SQL function `maintain`, a quarter of a second each.
const CALLS: usize = 100;

impl Client {
    /// Runs maintenance for all queues of the schema, with or without a processor: what the SQL
    /// function `maintain` does, and schedules by cron expressions (with the feature `cron`). Call
    /// it every second or so, as `seriatim maintain` does; retention and the sweep run every 10 s.
    /// Any number of processes may call it.
    ///
    /// Ended jobs stay as long as the last processor of their queue said. A queue that has had no
    /// processor keeps succeeded and cancelled jobs for 1 day, and failed ones for 14 days.
    ///
    /// Returns what it did; zeros while another process does maintenance.
    ///
    /// # Errors
    /// [`ControlError::ScheduleRefused`] if the database refused to enqueue the job of a schedule;
    /// everything was done all the same. [`ControlError::Database`].
    ///
    /// # Cancel safety
    /// Cancel safe: what was done stays, the rest is for the next call.
    pub async fn maintain(&self, pool: &PgPool) -> Result<Maintained, ControlError> {
        let mut all = Maintained::default();
        let mut conn = WorkConnection::from(pool.acquire().await?);
        for _ in 0..CALLS {
            let once = async |conn: &mut PgConnection| self.store.maintain(conn).await;
            let (maintained, more) = match in_short_tx(&mut conn, once).await {
                Ok(done) => done,
                // A row was locked. Nothing was done; the rest is for the next call.
                Err(error) if gave_up_waiting(&error) => break,
                Err(error) => return Err(error.into()),
            };
            all += maintained;
            if !more {
                break;
            }
        }
        let fired = fire_schedules(&self.store, &mut conn, None).await?;
        conn.done();
        all.scheduled += fired.jobs;
        match fired.refused.into_iter().next() {
            Some((schedule, source)) => {
                Err(ControlError::ScheduleRefused { schedule, source: redact_detail(source) })
            }
            None => Ok(all),
        }
    }

    /// Runs one round of maintenance for one queue, with a retention of its own. For all queues of
    /// a schema see [`maintain`](Self::maintain). It deletes what the retention of `queue` no
    /// longer keeps (for 5 s at most), deduplication ids whose window has ended,
    /// and ended pauses of groups. It carries
    /// out requests to cancel, ends halts at their deadline, fires schedules that are due, ends
    /// batches and moves up to 1,000 jobs of each running move task. Call it at intervals;
    /// processors with maintenance do the same for their queues every 10 s. Only the retention of
    /// the options counts, also for later calls of [`maintain`](Self::maintain).
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
        Ok(tick.rounds.iter().map(|round| round.deleted).sum())
    }
}

//! Schedules: listed, and fired without a processor.

use sqlx::{PgExecutor, PgPool};

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::redact::redact_detail;
use crate::job::schedule::StoredSchedule;
use crate::maintenance::schedules::fire_schedules;
use crate::store::WorkConnection;

/// Bounds a list of schedules.
const LISTED: i64 = 1000;

impl Client {
    /// Returns the schedules by their names: from the first on, or behind `after`. 1,000 are listed
    /// at most.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn schedules(
        &self,
        executor: impl PgExecutor<'_>,
        after: Option<&str>,
    ) -> Result<Vec<StoredSchedule>, ControlError> {
        Ok(self.store.schedules(executor, None, after, LISTED).await?)
    }

    /// Returns a schedule; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn schedule(
        &self,
        executor: impl PgExecutor<'_>,
        name: &str,
    ) -> Result<Option<StoredSchedule>, ControlError> {
        // PostgreSQL refuses it as a text.
        if name.contains('\0') {
            return Ok(None);
        }
        Ok(self.store.schedules(executor, Some(name), None, 1).await?.pop())
    }

    /// Fires the schedules that are due, as processors with maintenance do: for a database without
    /// one. Returns how many jobs were made. Any number of processes may call it at once. Without
    /// the feature `cron` it leaves schedules by cron expressions alone.
    ///
    /// # Errors
    /// [`ControlError::ScheduleRefused`] if the database refused to enqueue the job of a schedule;
    /// the others were fired all the same. [`ControlError::Database`].
    ///
    /// # Cancel safety
    /// Cancel safe: what was done stays, the rest is for the next call.
    pub async fn fire_schedules(&self, pool: &PgPool) -> Result<u64, ControlError> {
        let mut conn = WorkConnection::from(pool.acquire().await?);
        let fired = fire_schedules(&self.store, &mut conn, None).await?;
        conn.done();
        match fired.refused.into_iter().next() {
            Some((schedule, source)) => {
                Err(ControlError::ScheduleRefused { schedule, source: redact_detail(source) })
            }
            None => Ok(fired.jobs),
        }
    }
}

//! Metrics: counted by one collector of the fleet, and read by whatever shows them.

use std::time::Duration;

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::metrics::Metrics;
use crate::job::minutes::LastHour;

impl Client {
    /// Counts the metrics of all queues, unless any process did less than `every` ago, or does now.
    /// Returns whether it did. Call it every 15 s in each process that should take part.
    ///
    /// `every` is one second or more. The cost does not grow with the backlog; give the session a
    /// `statement_timeout` of 2 s.
    pub async fn collect_metrics(
        &self,
        executor: impl PgExecutor<'_>,
        every: Duration,
    ) -> Result<bool, sqlx::Error> {
        self.store.collect_metrics(executor, every).await
    }

    /// Returns the metrics as they were counted last. Costs as much as a look at a small table.
    pub async fn metrics(&self, executor: impl PgExecutor<'_>) -> Result<Metrics, sqlx::Error> {
        self.store.metrics(executor).await
    }

    /// Returns the last hour of these queues, minute by minute. [`collect_metrics`] counts a minute
    /// some seconds after its end; where nobody called it for a while, it counts the minutes that
    /// are missing, the newest first, five a call. Costs a look at up to 60 rows a queue.
    ///
    /// Jobs that are deleted as they succeed ([`Retention::Never`]) are not counted.
    ///
    /// [`collect_metrics`]: Self::collect_metrics
    /// [`Retention::Never`]: crate::Retention::Never
    pub async fn last_hour(
        &self,
        executor: impl PgExecutor<'_>,
        queues: &[&str],
    ) -> Result<LastHour, sqlx::Error> {
        self.store.last_hour(executor, queues).await
    }
}

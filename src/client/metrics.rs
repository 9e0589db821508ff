//! Metrics: counted by one collector of the fleet, and read by whatever shows them.

use std::time::Duration;

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::metrics::Metrics;

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
}

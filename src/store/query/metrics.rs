//! Metrics, as the collector has stored them.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use crate::job::metrics::{FleetMetrics, Metrics, QueueMetrics};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    COLLECT = |names| names.sql("select {collect_metrics}(make_interval(secs => $1))");
    METRICS = |names| names.sql(
        "select m.queue, m.numbers, m.collected_at, extract(epoch from clock_timestamp() - m.collected_at)::float8
        from {queue_metrics} m order by m.queue limit 10001",
    );
}

impl Store {
    pub(crate) async fn collect_metrics(
        &self,
        executor: impl PgExecutor<'_>,
        every: Duration,
    ) -> Result<bool, sqlx::Error> {
        self.query(&COLLECT).bind(every.as_secs_f64()).fetch_one(executor).await?.try_get(0)
    }

    pub(crate) async fn metrics(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Metrics, sqlx::Error> {
        let mut metrics = Metrics {
            collected_at: None,
            age_s: None,
            fleet: FleetMetrics::default(),
            queues: BTreeMap::new(),
        };
        for row in self.query(&METRICS).fetch_all(executor).await? {
            let queue: String = row.try_get(0)?;
            if queue.is_empty() {
                metrics.fleet = row.try_get::<Json<FleetMetrics>, _>(1)?.0;
                (metrics.collected_at, metrics.age_s) = (row.try_get(2)?, row.try_get(3)?);
            } else {
                metrics.queues.insert(queue, row.try_get::<Json<QueueMetrics>, _>(1)?.0);
            }
        }
        Ok(metrics)
    }
}

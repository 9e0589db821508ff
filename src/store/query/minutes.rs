//! The last hour of queues, minute by minute, as the collector has stored it.

use sqlx::{PgExecutor, Row};

use crate::job::minutes::{LastHour, QueueMinute};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Minutes of queues, and those that were counted, which have no name.
    LAST_HOUR = |names| names.sql(
        "select m.queue, m.minute, m.ended, m.failed, m.wait_median_ms, m.wait_p95_ms
        from {queue_minute} m
        where m.queue = any (array_append($1::text[], '')) and m.minute > clock_timestamp() - interval '62 min'
        order by m.queue, m.minute",
    );
}

impl Store {
    pub(crate) async fn last_hour(
        &self,
        executor: impl PgExecutor<'_>,
        queues: &[&str],
    ) -> Result<LastHour, sqlx::Error> {
        let mut hour = LastHour::default();
        for row in self.query(&LAST_HOUR).bind(queues).fetch_all(executor).await? {
            let (queue, minute): (String, _) = (row.try_get(0)?, row.try_get(1)?);
            if queue.is_empty() {
                hour.counted.push(minute);
                continue;
            }
            let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
            let wait =
                |n: usize| row.try_get::<Option<i64>, _>(n).map(|wait| wait.map(i64::unsigned_abs));
            hour.queues.entry(queue).or_default().push(QueueMinute {
                minute,
                ended: count(2)?,
                failed: count(3)?,
                wait_median_ms: wait(4)?,
                wait_p95_ms: wait(5)?,
            });
        }
        Ok(hour)
    }
}

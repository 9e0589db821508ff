//! Jobs in groups that begin on one server and end on another one, each once and in order.

use std::time::Duration;

use serde_json::json;
use seriatim::{Client, JobHandler, NewJob, Processor, QueueOptions, RetryPolicy};
use sqlx::PgPool;

use crate::support::{Log, drained, handler_with, jobs_where, queue, size, started};

const GROUPS: u32 = 10;

/// The jobs of queue `q`, and which of them ran.
#[derive(Default)]
pub(super) struct CarriedOver {
    log: Log,
}

impl CarriedOver {
    /// Enqueues jobs whose data are numbers below 500.
    pub(super) async fn enqueue(&self, old: &PgPool) {
        let jobs =
            (0..size(200, 500)).map(|n| NewJob::new("q", &n).group(format!("g{}", n % GROUPS)));
        Client::default().enqueue_many(old, jobs).await.unwrap();
    }

    pub(super) fn options() -> QueueOptions {
        queue("q").retry(RetryPolicy::new(5)).time_slice(Duration::ZERO)
    }

    pub(super) fn handler(&self) -> impl JobHandler {
        handler_with(self.log.clone(), async |log, job, data| {
            log.add(format!("{} {data}", job.group().unwrap()));
            Ok(json!(null))
        })
    }

    /// Runs a hundred of them, and stops.
    pub(super) async fn begin(&self, old: &PgPool) {
        let builder = Processor::builder(old.clone()).queue(Self::options(), self.handler());
        let running = started(builder).await;
        self.log.wait_for(100).await;
        running.shutdown(Duration::from_secs(5)).await;
    }

    /// Waits until all have ended, and checks that each group ran in order, at the first attempt.
    pub(super) async fn end_in_order(&self, new: &PgPool) {
        drained(new, "q").await;
        assert_eq!(jobs_where(new, "queue = 'q' and attempts > 1").await, 0);
        let entries = self.log.entries();
        for group in 0..GROUPS {
            let prefix = format!("g{group} ");
            let ran: Vec<u32> = entries
                .iter()
                .filter_map(|entry| entry.strip_prefix(&prefix)?.parse().ok())
                .collect();
            assert!(ran.is_sorted_by(|before, after| before < after), "{group}: {ran:?}");
        }
    }
}

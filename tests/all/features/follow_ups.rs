//! Jobs that a handler enqueues through its own job.

use std::time::Duration;

use serde_json::json;
use seriatim::{Client, EnqueueError, Hold, JobError, NewJob};

use crate::support::{database, handler, processor, queue, sample, value};

#[tokio::test]
async fn a_job_enqueues_in_its_processors_schema_and_its_transaction() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let pool = database.pool();
        let client = Client::new("billing").unwrap().data_limit(20);
        client.migrate(pool).await.unwrap();
        let run = handler(async |job, data| {
            job.enqueue(NewJob::new("next", &data).group("g")).await?;
            if job.attempt() == 1 {
                return Err(JobError::retry("the follow-up is rolled back with this"));
            }
            let large = job.enqueue(NewJob::new("next", &"x".repeat(30))).await;
            assert!(matches!(large, Err(EnqueueError::DataTooLarge { index: None, .. })));
            Ok(json!(null))
        });
        let builder = processor(&database, 10).await.client(&client);
        let running = builder.queue(queue("q").hold(hold), run).build().unwrap();
        let _running = running.start().await.unwrap();
        let job = NewJob::new("q", &7).group("g");
        let id = client.enqueue(pool, job).await.unwrap().id();
        loop {
            if client.job(pool, id).await.unwrap().unwrap().status.is_final() {
                break;
            }
            // The database has no event to wait for here.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let next = "select array_agg(data) from billing.job where queue = 'next'";
        let next: Vec<serde_json::Value> = value(pool, next).await;
        assert_eq!(next, [json!(7)], "{hold:?}");
        let elsewhere: i64 = value(pool, "select count(*) from seriatim.job").await;
        assert_eq!(elsewhere, 0);
    }
}

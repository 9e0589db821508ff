//! Data that does not decode into the handler's type.

use std::time::Duration;

use seriatim::{ActiveJob, FailureKind, JobError, JobHandler, JobStatus, RetryPolicy, async_trait};

use crate::support::{database, ended, job_of, processor, queue, started};

struct Numbers;

#[async_trait]
impl JobHandler for Numbers {
    type Data = u32;
    type Output = u32;
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, n: u32) -> Result<u32, JobError> {
        Ok(n)
    }
}

#[tokio::test]
async fn data_that_does_not_decode_is_a_dead_letter_at_once() {
    let database = database().await;
    let pool = database.pool();
    let retries = RetryPolicy::new(3).base(Duration::ZERO);
    let _running = started(
        processor(&database, 10)
            .await
            .queue(queue("q"), Numbers)
            .queue(queue("patient").retry(retries).retry_undecodable(true), Numbers),
    )
    .await;
    for (queue, attempts) in [("q", 1), ("patient", 3)] {
        let id = seriatim::enqueue(pool, job_of(queue, "g", "text")).await.unwrap().id();
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Failed, attempts), "{queue}");
        assert_eq!(job.error.unwrap().kind, FailureKind::Data);
    }
}

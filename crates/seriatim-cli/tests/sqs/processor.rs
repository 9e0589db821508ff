//! A processor of the library beside the consumers, on the same queue.

use std::time::Duration;

use serde_json::Value;
use seriatim::{
    ActiveJob, Bytes, JobError, JobHandler, Processor, QueueOptions, Retention, RetryPolicy,
    Running, async_trait,
};
use seriatim_history::event::Ended;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::producer::QUEUE;
use crate::recorder::{Recorder, now};

struct Handler(Recorder);

#[async_trait]
impl JobHandler for Handler {
    type Data = Bytes;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, body: Bytes) -> Result<(), JobError> {
        let body: Value = serde_json::from_slice(&body).map_err(JobError::fail)?;
        let name = body["name"].as_str().unwrap_or_default();
        let mut handling = self.0.start(name, job.attempt());
        sleep(Duration::from_millis(fastrand::u64(..20))).await;
        if fastrand::u8(..8) == 0 {
            handling.ends(Ended::Retry);
            return Err(JobError::retry("by chance"));
        }
        handling.ends(Ended::Succeeded);
        Ok(())
    }
}

pub fn start(pool: PgPool, recorder: Recorder) -> Running {
    let retry = RetryPolicy::new(1000).base(Duration::from_millis(5));
    let queue = QueueOptions::new(QUEUE)
        .concurrency(3)
        .retry(retry.cap(Duration::from_millis(50)))
        .keep_succeeded(Retention::Forever)
        .keep_failed(Retention::Forever);
    let errors = recorder.clone();
    Processor::builder(pool)
        .poll_interval(Duration::from_millis(50))
        .on_error(move |error| errors.fault(format!("the processor: {error}"), now()))
        .queue(queue, Handler(recorder))
        .build()
        .unwrap()
        .start_when_ready()
}

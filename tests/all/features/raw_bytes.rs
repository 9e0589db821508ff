//! Jobs with raw bytes instead of JSON.

use serde_json::{Value, json};
use seriatim::{
    ActiveJob, Bytes, Client, EnqueueError, FailureKind, JobError, JobHandler, JobStatus, NewJob,
    async_trait,
};

use crate::support::{database, ended, handler, job, job_of, processor, queue, serve, started};

/// Takes bytes and tells what it got.
struct TakesBytes;

#[async_trait]
impl JobHandler for TakesBytes {
    type Data = Bytes;
    type Output = Value;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, data: Bytes) -> Result<Value, JobError> {
        Ok(json!([job.content_type(), data.len(), data.to_vec()]))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_as_they_were_given() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(&database, 10, queue("q"), TakesBytes).await;
    let all: Vec<u8> = (0..=255).collect();
    let jobs = [
        NewJob::bytes("q", "application/octet-stream", all.clone()).group("g"),
        NewJob::bytes("q", "text/plain; charset=utf-8", Vec::new()),
    ];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let seen = ended(pool, jobs[0].id()).await;
    assert_eq!(seen.result, Some(json!(["application/octet-stream", 256, all])), "{seen:?}");
    assert_eq!((seen.payload, seen.data), (Some(all), Value::Null));
    assert_eq!(seen.content_type.as_deref(), Some("application/octet-stream"));
    let seen = ended(pool, jobs[1].id()).await;
    assert_eq!(seen.result, Some(json!(["text/plain; charset=utf-8", 0, []])), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_handler_cannot_take_is_a_failed_attempt() {
    let database = database().await;
    let pool = database.pool();
    let _running = started(
        processor(&database, 10)
            .await
            .queue(queue("json"), handler(async |_, data| Ok(data)))
            .queue(queue("bytes"), TakesBytes),
    )
    .await;
    let cases = [
        (NewJob::bytes("json", "image/png", b"\x89PNG"), "4 raw bytes (image/png), not JSON"),
        (NewJob::bytes("json", "application/json", b"{}"), "seriatim::Bytes"),
        (NewJob::new("bytes", "text"), "a job with raw bytes"),
        (NewJob::new("bytes", &[1, 2]), "a job with raw bytes"),
    ];
    for (new, words) in cases {
        let id = seriatim::enqueue(pool, new.max_attempts(1)).await.unwrap().id();
        let seen = ended(pool, id).await;
        let failure = seen.error.clone().expect("it failed");
        assert_eq!((seen.status, failure.kind), (JobStatus::Failed, FailureKind::Data));
        assert!(failure.message.contains(words), "{failure:?}");
    }
}

#[tokio::test]
async fn the_limit_of_the_data_is_that_of_bytes_too() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default().data_limit(10);
    let id = client.enqueue(pool, NewJob::bytes("q", "x", [0; 10])).await.unwrap().id();
    assert_eq!(job(pool, id).await.payload, Some(vec![0; 10]));
    let refused = client.enqueue(pool, NewJob::bytes("q", "x", [0; 11])).await;
    assert!(matches!(
        refused,
        Err(EnqueueError::DataTooLarge { index: None, size: 11, limit: 10, .. })
    ));
    // Side by side with JSON, also JSON's null.
    let mixed = [job_of("q", "g", Value::Null), NewJob::bytes("q", "x", [1]), job_of("q", "g", 2)];
    let mixed = client.enqueue_many(pool, mixed).await.unwrap();
    let mut seen = Vec::new();
    for enqueued in mixed {
        let job = job(pool, enqueued.id()).await;
        seen.push((job.data, job.payload));
    }
    let expected = [(Value::Null, None), (Value::Null, Some(vec![1])), (json!(2), None)];
    assert_eq!(seen, expected);
}

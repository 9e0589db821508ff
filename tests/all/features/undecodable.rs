//! Data that does not decode into the handler's type.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use seriatim::{
    ActiveJob, FailureKind, Hold, JobError, JobHandler, JobStatus, QueueOptions, RetryPolicy,
    async_trait,
};

use crate::support::{Log, database, ended, enqueue, job_of, job_when, processor, queue, started};

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
async fn data_that_does_not_decode_is_retried_in_its_place() {
    let database = database().await;
    let pool = database.pool();
    let retries = RetryPolicy::new(3).base(Duration::ZERO);
    let _running = started(
        processor(&database, 10)
            .await
            .queue(queue("q").retry(retries.clone()), Numbers)
            .queue(queue("at once").retry(retries).retry_undecodable(false), Numbers),
    )
    .await;
    for (queue, attempts) in [("q", 3), ("at once", 1)] {
        let id = seriatim::enqueue(pool, job_of(queue, "g", "text")).await.unwrap().id();
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Failed, attempts), "{queue}");
        assert_eq!(job.error.unwrap().kind, FailureKind::Data);
    }
}

/// The payload of the release before.
#[derive(Deserialize)]
struct OldPosting {
    cents: i64,
}

/// The payload of the next release, which reads old jobs as well.
#[derive(Deserialize)]
#[serde(from = "AnyPosting")]
struct NewPosting {
    amount: Amount,
}

#[derive(Deserialize)]
struct Amount {
    cents: i64,
    #[serde(default = "euro")]
    currency: String,
}

fn euro() -> String {
    String::from("EUR")
}

#[derive(Deserialize)]
struct AnyPosting {
    amount: Option<Amount>,
    cents: Option<i64>,
}

impl From<AnyPosting> for NewPosting {
    fn from(AnyPosting { amount, cents }: AnyPosting) -> Self {
        let old = || Amount { cents: cents.unwrap_or(0), currency: euro() };
        Self { amount: amount.unwrap_or_else(old) }
    }
}

struct Old(Log);
struct New(Log);

#[async_trait]
impl JobHandler for Old {
    type Data = OldPosting;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, posting: OldPosting) -> Result<(), JobError> {
        self.0.add(format!("old {} {}", job.id(), posting.cents));
        Ok(())
    }
}

#[async_trait]
impl JobHandler for New {
    type Data = NewPosting;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, posting: NewPosting) -> Result<(), JobError> {
        let NewPosting { amount: Amount { cents, currency } } = posting;
        self.0.add(format!("new {} {cents} {currency}", job.id()));
        Ok(())
    }
}

/// A rolling deploy, as `docs/guide/changing-a-payload.md` has it.
async fn deploy(hold: Hold) {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    // Long enough for the new process to start.
    let retry =
        RetryPolicy::new(100).base(Duration::from_millis(100)).cap(Duration::from_millis(100));
    let options = || QueueOptions::new("postings").retry(retry.clone()).hold(hold);
    let builder = processor(&database, 12).await.node("web-1");
    let old = started(builder.queue(options(), Old(log.clone()))).await;
    let first = enqueue(pool, "postings", "ann", json!({ "cents": 5 })).await;
    ended(pool, first).await;
    // A producer of the new release, whose jobs the old process meets.
    let new_data = json!({ "amount": { "cents": 7, "currency": "SEK" } });
    let second = enqueue(pool, "postings", "ann", new_data).await;
    let third = enqueue(pool, "postings", "ann", json!({ "cents": 9 })).await;
    let waits = job_when(pool, second, |job| !job.history.is_empty()).await;
    assert_eq!((waits.status, waits.history[0].kind), (JobStatus::Queued, FailureKind::Data));
    let message = waits.history[0].message.as_deref().unwrap();
    for part in ["OldPosting", "missing field `cents`", "of node \"web-1\""] {
        assert!(message.contains(part), "{message}");
    }
    let builder = processor(&database, 12).await.node("web-2");
    let new = started(builder.queue(options(), New(log.clone()))).await;
    // The old process may take it again, and puts it off again.
    old.shutdown(Duration::from_secs(5)).await;
    for id in [second, third] {
        assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
    }
    let expected =
        [format!("old {first} 5"), format!("new {second} 7 SEK"), format!("new {third} 9 EUR")];
    assert_eq!(log.entries(), expected, "the order is kept");
    new.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_rolling_deploy_keeps_the_order_by_transaction() {
    deploy(Hold::Transaction).await;
}

#[tokio::test]
async fn a_rolling_deploy_keeps_the_order_by_lease() {
    deploy(Hold::Lease(Duration::from_secs(10))).await;
}

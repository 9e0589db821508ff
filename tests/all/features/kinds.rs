//! Several kinds of jobs in one queue, each with a handler of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use seriatim::{
    ActiveJob, BuildMistake, FailureKind, Hold, Job, JobError, JobHandler, JobKind, JobStatus,
    Kinds, NewJob, RetryPolicy, async_trait,
};

use crate::support::{
    Log, database, ended, enqueue, job_when, processor, queue, sample, started, value,
};

/// How long a payment waits before its second attempt.
const LATER: Duration = Duration::from_hours(3);
const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(1))];

#[derive(Serialize, Deserialize)]
struct Placed {
    customer: i64,
    order: String,
}

#[derive(Serialize, Deserialize)]
struct Paid {
    customer: i64,
    cents: u32,
}

impl JobKind for Placed {
    const NAME: &'static str = "order-placed";
    const QUEUE: &'static str = "orders";

    fn group(&self) -> Option<String> {
        Some(format!("customer-{}", self.customer))
    }
}

impl JobKind for Paid {
    const NAME: &'static str = "order-paid";
    const QUEUE: &'static str = "orders";
    const ALIASES: &'static [&'static str] = &["paid"];

    fn group(&self) -> Option<String> {
        Some(format!("customer-{}", self.customer))
    }

    fn timeout() -> Option<Duration> {
        Some(Duration::from_secs(7))
    }

    fn retry() -> Option<RetryPolicy> {
        Some(RetryPolicy::new(2).base(LATER).cap(LATER).jitter(0.0))
    }
}

struct Place(Log);
struct Pay(Log);

#[async_trait]
impl JobHandler for Place {
    type Data = Placed;
    type Output = String;
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, placed: Placed) -> Result<String, JobError> {
        self.0.add(format!("placed {}", placed.order));
        Ok(placed.order)
    }
}

#[async_trait]
impl JobHandler for Pay {
    type Data = Paid;
    type Output = u32;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, paid: Paid) -> Result<u32, JobError> {
        self.0.add(format!("paid {}", paid.cents));
        if paid.cents == 0 {
            return Err(JobError::retry(format!("nothing was paid, in attempt {}", job.attempt())));
        }
        Ok(paid.cents)
    }
}

fn placed(order: &str) -> Placed {
    Placed { customer: 7, order: order.to_owned() }
}

fn paid(cents: u32) -> Paid {
    Paid { customer: 7, cents }
}

#[tokio::test]
async fn each_kind_has_its_handler_and_all_share_the_order_of_their_group() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let mut jobs = vec![NewJob::of(&placed("a")), NewJob::of(&paid(5))];
        jobs.push((&placed("b")).into());
        let mut ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
        ids.push(seriatim::enqueue(pool, &paid(6)).await.unwrap());
        // Under the name that the kind had before.
        let old = NewJob::new("orders", &json!({ "customer": 7, "cents": 8 })).group("customer-7");
        ids.push(seriatim::enqueue(pool, old.name("paid")).await.unwrap());
        let kinds = Kinds::new().on(Place(log.clone())).on(Pay(log.clone()));
        let _running =
            started(processor(&database, 10).await.queue(queue("orders").hold(hold), kinds)).await;
        let last = ended(pool, ids[4].id()).await;
        assert_eq!((last.status, last.result), (JobStatus::Succeeded, Some(json!(8))));
        assert_eq!(log.entries(), ["placed a", "paid 5", "placed b", "paid 6", "paid 8"]);
        let first = ended(pool, ids[0].id()).await;
        assert_eq!((first.name.as_deref(), first.result), (Some("order-placed"), Some(json!("a"))));
        assert_eq!(first.group.as_deref(), Some("customer-7"));
    }
}

#[tokio::test]
async fn a_kind_that_no_process_knows_waits_in_its_place_and_counts_no_attempt() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let retry = RetryPolicy::new(1).base(Duration::from_millis(20)).factor(1.0);
        let options = || queue("orders").hold(hold).retry(retry.clone());
        let old = Kinds::new().on(Place(log.clone()));
        let builder = processor(&database, 10).await.node("web-1");
        let old = started(builder.queue(options(), old)).await;
        let unknown = seriatim::enqueue(pool, &paid(5)).await.unwrap().id();
        let behind = seriatim::enqueue(pool, &placed("a")).await.unwrap().id();
        // More often than the queue, and the kind, have attempts. The history has the first.
        let put_off = |job: &Job| job.attempts >= 4 && job.status == JobStatus::Queued;
        let waits = job_when(pool, unknown, put_off).await;
        assert_eq!(waits.history.len(), 1);
        assert_eq!(
            (waits.status, waits.attempts - waits.attempts_forgiven),
            (JobStatus::Queued, 0)
        );
        let last = waits.history.last().unwrap();
        assert_eq!(last.kind, FailureKind::UnknownKind);
        let message = last.message.as_deref().unwrap();
        for part in ["no handler for the kind \"order-paid\"", "web-1", "\"order-placed\""] {
            assert!(message.contains(part), "{message}");
        }
        assert!(log.entries().is_empty(), "a job overtook the one of an unknown kind");
        let builder = processor(&database, 10).await.node("web-2");
        let new = Kinds::new().on(Place(log.clone())).on(Pay(log.clone()));
        let _new = started(builder.queue(options(), new)).await;
        old.shutdown(Duration::from_secs(5)).await;
        assert_eq!(ended(pool, unknown).await.status, JobStatus::Succeeded);
        assert_eq!(ended(pool, behind).await.status, JobStatus::Succeeded);
        assert_eq!(log.entries(), ["paid 5", "placed a"]);
        // A job that names no kind.
        let nameless = enqueue(pool, "orders", "other", json!(1)).await;
        let waits = job_when(pool, nameless, |job| !job.history.is_empty()).await;
        assert_eq!(waits.history[0].kind, FailureKind::UnknownKind);
    }
}

#[tokio::test]
async fn timeout_attempts_and_backoff_are_those_of_the_kind() {
    let (database, log) = (database().await, Log::default());
    let pool = database.pool();
    let many = RetryPolicy::new(20).base(Duration::from_millis(1));
    let kinds = Kinds::new().on(Place(log.clone())).on(Pay(log.clone()));
    let builder = processor(&database, 10).await.queue(queue("orders").retry(many), kinds);
    let _running = started(builder).await;
    let id = seriatim::enqueue(pool, &paid(0)).await.unwrap().id();
    let waits = job_when(pool, id, |job| !job.history.is_empty()).await;
    let timeout: i64 =
        value(pool, format!("select timeout_ms from seriatim.job where id = {id}")).await;
    assert_eq!((timeout, waits.max_attempts), (7_000, Some(2)));
    let delay = waits.run_at - waits.history[0].finished_at;
    assert!(delay > chrono::TimeDelta::hours(2), "{delay}");
    // Data that does not decode fails as it does without kinds, and the failure names the type.
    let odd = NewJob::new("orders", &json!({ "customer": 9 })).name("order-paid").group("other");
    let odd = seriatim::enqueue(pool, odd.max_attempts(1)).await.unwrap().id();
    let failure = ended(pool, odd).await.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Data);
    assert!(failure.message.contains("Paid: missing field `cents`"), "{}", failure.message);
}

#[tokio::test]
async fn a_kind_with_two_handlers_or_of_another_queue_is_refused() {
    let (database, log) = (database().await, Log::default());
    let twice = Kinds::new().on(Place(log.clone())).on(Pay(log.clone())).on(Pay(log.clone()));
    let builder = processor(&database, 30).await.queue(queue("orders"), twice);
    let builder = builder.queue(queue("mails"), Kinds::new().on(Place(log)));
    let error = builder.queue(queue("none"), Kinds::new()).build().unwrap_err();
    let mut found: Vec<_> = error
        .mistakes()
        .iter()
        .map(|mistake| match mistake {
            BuildMistake::KindTwice { queue, kind } => format!("{kind} twice in {queue}"),
            BuildMistake::KindOfOtherQueue { queue, kind, of } => {
                format!("{kind} in {queue}, of {of}")
            }
            BuildMistake::NoKind { queue } => format!("none in {queue}"),
            other => other.to_string(),
        })
        .collect();
    found.sort();
    let expected = [
        "none in none",
        "order-paid twice in orders",
        "order-placed in mails, of orders",
        "paid twice in orders",
    ];
    assert_eq!(found, expected);
}

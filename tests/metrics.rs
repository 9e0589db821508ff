//! The metrics of a process: each has the right value after a real run. A binary of its own, since
//! a process has one recorder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, EnqueueError, Hold, JobError, JobHandler, JobStatus, NewJob, Processor,
    QueueOptions, RetryPolicy, Running, async_trait,
};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_mins(1);

/// The recorder of this process.
fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let seconds = Matcher::Suffix(String::from("_seconds"));
        let builder = builder.set_buckets_for_metric(seconds, &[0.01, 1.0, 60.0]).unwrap();
        builder.install_recorder().unwrap()
    })
}

/// Returns the value of the one sample with this name and these labels; `None` if there is none.
fn sample(name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let text = recorder().render();
    let has = |line: &str| {
        line.split(['{', ' ']).next() == Some(name)
            && labels.iter().all(|(name, value)| line.contains(&format!("{name}=\"{value}\"")))
    };
    let mut lines = text.lines().filter(|line| has(line));
    let line = lines.next()?;
    assert!(lines.next().is_none(), "{name} {labels:?} is several: {text}");
    line.rsplit(' ').next()?.parse().ok()
}

/// Checks a sample of a queue.
fn expect(queue: &str, name: &str, label: Option<(&str, &str)>, value: f64) {
    let labels: Vec<_> = [("queue", queue)].into_iter().chain(label).collect();
    let found = sample(name, &labels).unwrap_or_default();
    assert!((found - value).abs() < 1e-9, "{name} {labels:?} is {found}, not {value}");
}

/// The state that the handlers need.
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    gate: Arc<Semaphore>,
}

#[async_trait]
impl JobHandler for Shop {
    type Data = String;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, what: String) -> Result<(), JobError> {
        match (&*what, job.attempt()) {
            ("retry", 1) => Err(JobError::retry("not yet")),
            ("fail", _) => Err(JobError::fail("never")),
            ("panic", 1) => panic!("as it is told to"),
            ("cancel", _) => {
                self.gate.add_permits(1);
                job.cancelled().await;
                Err(JobError::retry("told to stop"))
            }
            ("wait", _) => {
                self.gate.acquire().await?.forget();
                Ok(())
            }
            // Another worker seems to have the claim now.
            ("lose", 1) => {
                let steal = "update seriatim.queue_group set claim = gen_random_uuid(), \
                     ready_at = clock_timestamp() where queue = 'lost'";
                sqlx::query(steal).execute(&self.pool).await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

struct Scene {
    database: TestDatabase,
    client: Client,
    gate: Arc<Semaphore>,
}

impl Scene {
    async fn new() -> Self {
        recorder();
        let (client, gate) = (Client::default(), Arc::new(Semaphore::new(0)));
        Self { database: TestDatabase::create().await.unwrap(), client, gate }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    async fn enqueue(&self, queue: &str, what: &str) -> i64 {
        let job = NewJob::new(queue, what).group(what);
        self.client.enqueue(self.pool(), job).await.unwrap().id()
    }

    async fn start(&self, options: QueueOptions) -> Running {
        let pool = PgPoolOptions::new().max_connections(10);
        let pool = self.database.pool_with(pool).await.unwrap();
        let shop = Shop { pool: self.pool().clone(), gate: Arc::clone(&self.gate) };
        let builder = Processor::builder(pool).poll_interval(Duration::from_millis(50));
        builder.queue(options, shop).build().unwrap().start().await.unwrap()
    }

    /// Waits until no job of the queue is unfinished.
    async fn drained(&self, queue: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.client.counts(self.pool(), queue).await.unwrap().unfinished() > 0 {
            assert!(Instant::now() < deadline, "queue {queue} is not drained");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until(&self, id: i64, status: JobStatus) {
        let deadline = Instant::now() + PATIENCE;
        while self.client.job(self.pool(), id).await.unwrap().unwrap().status != status {
            assert!(Instant::now() < deadline, "job {id} is not {status:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn options(queue: &str) -> QueueOptions {
    let retry = RetryPolicy::new(3).base(Duration::from_millis(10));
    QueueOptions::new(queue).concurrency(4).retry(retry)
}

async fn attempts_are_counted(queue: &str, hold: Hold) {
    let scene = Scene::new().await;
    let running = scene.start(options(queue).hold(hold)).await;
    for what in ["succeed", "retry", "fail", "panic"] {
        scene.enqueue(queue, what).await;
    }
    let cancelled = scene.enqueue(queue, "cancel").await;
    // A job that is cancelled before its handler begins has no duration.
    scene.gate.acquire().await.unwrap().forget();
    scene.client.cancel(scene.pool(), cancelled).await.unwrap();
    scene.drained(queue).await;
    running.shutdown(Duration::from_secs(5)).await;

    let of = |name: &str, label, value| expect(queue, name, label, value);
    of("seriatim_jobs_enqueued_total", Some(("result", "enqueued")), 5.0);
    of("seriatim_attempts_started_total", None, 7.0);
    for (outcome, attempts) in
        [("succeeded", 3.0), ("retried", 2.0), ("failed", 1.0), ("cancelled", 1.0), ("lost", 0.0)]
    {
        of("seriatim_attempts_ended_total", Some(("outcome", outcome)), attempts);
        of("seriatim_process_duration_seconds_count", Some(("outcome", outcome)), attempts);
    }
    for kind in ["error", "permanent", "panic"] {
        of("seriatim_attempt_failures_total", Some(("kind", kind)), 1.0);
    }
    of("seriatim_lane_wait_seconds_count", None, 7.0);
    of("seriatim_slot_wait_seconds_count", None, 7.0);
    // No job waited for a lane for long: each has a group of its own.
    of("seriatim_lane_wait_seconds_bucket", Some(("le", "1")), 7.0);
    of("seriatim_claimed_jobs_sum", None, 7.0);
    of("seriatim_settle_duration_seconds_count", None, 7.0);
    for owner in ["worker", "receiver"] {
        of("seriatim_takeovers_total", Some(("reason", owner)), 0.0);
    }
    assert!(sample("seriatim_claim_duration_seconds_count", &[("queue", queue)]) > Some(0.0));
}

#[tokio::test]
async fn attempts_are_counted_by_transaction() {
    attempts_are_counted("by transaction", Hold::Transaction).await;
}

#[tokio::test]
async fn attempts_are_counted_by_lease() {
    attempts_are_counted("by lease", Hold::Lease(Duration::from_mins(1))).await;
}

#[tokio::test]
async fn each_enqueue_is_counted_by_its_result() {
    let scene = Scene::new().await;
    let (pool, client) = (scene.pool(), &scene.client);
    let job = |n: u32| NewJob::new("enqueued", &n.to_string());
    client.enqueue(pool, job(1).dedup_id("one")).await.unwrap();
    let many = [job(1).dedup_id("one"), job(2), job(3), NewJob::new("enqueued too", &4)];
    client.enqueue_many(pool, many).await.unwrap();
    // Counted with the statement, whatever becomes of the transaction.
    let mut tx = pool.begin().await.unwrap();
    client.enqueue(&mut *tx, job(5)).await.unwrap();
    tx.rollback().await.unwrap();
    let refused = client.enqueue(pool, job(6).priority(99)).await.unwrap_err();
    assert!(!matches!(refused, EnqueueError::Database(_)), "{refused}");
    let batch = client.enqueue_batch(pool, [job(7), job(8).priority(99)]).await.unwrap();
    assert!(batch[0].is_ok() && batch[1].is_err());
    client.enqueue(pool, NewJob::new("", &9)).await.unwrap_err();
    let of = |queue, result, jobs| {
        expect(queue, "seriatim_jobs_enqueued_total", Some(("result", result)), jobs);
    };
    of("enqueued", "enqueued", 5.0);
    of("enqueued", "duplicate", 1.0);
    of("enqueued", "refused", 2.0);
    of("enqueued too", "enqueued", 1.0);
    of("other", "refused", 1.0);
}

#[tokio::test]
async fn receives_are_counted_and_so_are_claims_that_are_taken_over() {
    let scene = Scene::new().await;
    scene.enqueue("received", "given up").await;
    let receive = || Receive::new("received").visibility(Duration::ZERO);
    for received in [1, 0] {
        let jobs = scene.client.receive(scene.pool(), receive()).await.unwrap();
        assert_eq!(jobs.len(), received);
    }
    let of = |name: &str, label, value| expect("received", name, Some(label), value);
    of("seriatim_receives_total", ("result", "jobs"), 1.0);
    of("seriatim_receives_total", ("result", "empty"), 1.0);
    let running = scene.start(options("received")).await;
    scene.drained("received").await;
    running.shutdown(Duration::from_secs(5)).await;
    of("seriatim_takeovers_total", ("reason", "receiver"), 1.0);
    of("seriatim_takeovers_total", ("reason", "worker"), 0.0);
}

#[tokio::test]
async fn an_attempt_that_was_lost_is_counted_and_so_is_its_take_over() {
    let scene = Scene::new().await;
    let running = scene.start(options("lost").hold(Hold::Lease(Duration::from_mins(1)))).await;
    scene.enqueue("lost", "lose").await;
    scene.drained("lost").await;
    running.shutdown(Duration::from_secs(5)).await;
    let of = |name: &str, label, value| expect("lost", name, Some(label), value);
    of("seriatim_attempts_ended_total", ("outcome", "lost"), 1.0);
    of("seriatim_attempts_ended_total", ("outcome", "succeeded"), 1.0);
    of("seriatim_takeovers_total", ("reason", "worker"), 1.0);
    expect("lost", "seriatim_attempts_started_total", None, 2.0);
    let errors = sample("seriatim_background_errors_total", &[("source", "settle")]);
    assert_eq!(errors, Some(1.0));
}

#[tokio::test]
async fn slots_are_busy_while_their_turns_run() {
    let scene = Scene::new().await;
    let slots = |busy, free| {
        expect("slots", "seriatim_slots", Some(("state", "busy")), busy);
        expect("slots", "seriatim_slots", Some(("state", "free")), free);
    };
    let running = scene.start(options("slots").hold(Hold::Transaction)).await;
    slots(0.0, 4.0);
    let job = scene.enqueue("slots", "wait").await;
    scene.until(job, JobStatus::Started).await;
    let deadline = Instant::now() + PATIENCE;
    let busy = || sample("seriatim_slots", &[("queue", "slots"), ("state", "busy")]);
    while busy() != Some(1.0) {
        assert!(Instant::now() < deadline, "no slot is busy");
        sleep(Duration::from_millis(10)).await;
    }
    slots(1.0, 3.0);
    scene.gate.add_permits(1);
    scene.drained("slots").await;
    running.shutdown(Duration::from_secs(5)).await;
    slots(0.0, 0.0);
}

/// Labels are few, and each metric says what it is.
#[tokio::test]
async fn no_group_and_no_job_is_a_label() {
    let scene = Scene::new().await;
    let job = NewJob::new("named", "x").group("group-g").name("name-n").reference("ref-r");
    scene.client.enqueue(scene.pool(), job).await.unwrap();
    let running = scene.start(options("named")).await;
    scene.drained("named").await;
    running.shutdown(Duration::from_secs(5)).await;
    let text = recorder().render();
    for hidden in ["group-g", "name-n", "ref-r"] {
        assert!(!text.contains(hidden), "{text}");
    }
    let help = "# HELP seriatim_slot_wait_seconds How long a job waited";
    assert!(text.contains(help), "{text}");
}

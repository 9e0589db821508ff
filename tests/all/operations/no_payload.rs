//! Data that jobs carry is in no line of the log and in no error, however the jobs end. Only a
//! handler can put it there.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Value, json};
use seriatim::receive::Receive;
use seriatim::{
    ActiveJob, Client, FailureKind, Hold, JobError, JobHandler, JobStatus, NewJob,
    ProcessorBuilder, QueueOptions, RetryPolicy, async_trait,
};
use sqlx::postgres::PgDatabaseError;

use crate::support::{
    PATIENCE, by_hand, chain, database, ended, handler, job, job_when, jobs_where, processor,
    queue, sample, started,
};

const MARKER: &str = "Zq9SECRETq9Z";

/// All that is logged in this process, at every level.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn start() -> Self {
        let lines = Self::default();
        let writer = lines.clone();
        tracing_subscriber::fmt()
            .with_env_filter("seriatim=trace,sqlx::pool=trace")
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .try_init()
            .expect("no other test of this binary has a subscriber");
        lines
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "never decoded")]
struct Strict {
    account: u32,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "never decoded")]
enum Kind {
    One,
}

/// A handler whose data does not decode.
struct Takes<T>(std::marker::PhantomData<fn() -> T>);

impl<T> Takes<T> {
    fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

#[async_trait]
impl<T: serde::de::DeserializeOwned + Send + 'static> JobHandler for Takes<T> {
    type Data = T;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: T) -> Result<(), JobError> {
        unreachable!("the data does not decode")
    }
}

fn once(name: &str, hold: Hold) -> QueueOptions {
    let waits = ["slow", "turn"].contains(&name);
    let timeout = if waits { Duration::from_millis(300) } else { PATIENCE };
    queue(name).hold(hold).retry(RetryPolicy::new(1)).timeout(timeout)
}

/// Queues of which each fails in its own way.
const WAYS: [(&str, FailureKind); 12] = [
    ("number", FailureKind::Data),
    ("strict", FailureKind::Data),
    ("kind", FailureKind::Data),
    ("time", FailureKind::Data),
    ("bytes", FailureKind::Data),
    ("slow", FailureKind::Timeout),
    ("panic", FailureKind::Panic),
    ("error", FailureKind::Error),
    ("nul", FailureKind::Output),
    ("deferred", FailureKind::Commit),
    ("refused", FailureKind::Commit),
    ("fine", FailureKind::Ignored),
];

fn failing(builder: ProcessorBuilder, hold: Hold) -> ProcessorBuilder {
    let echo = || handler(async |_, data| Ok(data));
    builder
        .queue(once("number", hold), Takes::<u32>::new())
        .queue(once("strict", hold), Takes::<Strict>::new())
        .queue(once("kind", hold), Takes::<Kind>::new())
        .queue(once("time", hold), Takes::<DateTime<Utc>>::new())
        .queue(once("bytes", hold), Takes::<Strict>::new())
        .queue(once("slow", hold), handler(async |_, _| std::future::pending().await))
        .queue(once("panic", hold), handler(async |_, _| panic!("it broke")))
        .queue(once("error", hold), handler(async |_, _| Err(JobError::retry("no luck"))))
        .queue(once("nul", hold), handler(async |_, data| Ok(json!([data, "\0"]))))
        .queue(
            once("deferred", hold),
            handler(async |job, data| {
                let insert = sqlx::query("insert into public.one values (1)");
                insert.execute(job.tx().await?).await?;
                Ok(data)
            }),
        )
        .queue(once("refused", hold), echo())
        .queue(once("fine", hold), echo())
        .queue(
            once("turn", hold).time_slice(Duration::from_secs(30)),
            handler(async |_, data| {
                if data == "second" {
                    std::future::pending::<()>().await;
                }
                Ok(data)
            }),
        )
}

async fn fail_in_every_way(hold: Hold, lines: &Lines) {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create table public.one (n int unique deferrable initially deferred);
         insert into public.one values (1);
         alter table seriatim.job add constraint host_says_no check (queue <> 'refused' or result is null);
         alter table seriatim.job add constraint host_says_no_data check (queue <> 'closed')",
    )
    .await;
    let reported = Lines::default();
    let hook = reported.clone();
    let builder = processor(&database, 20).await.slots(4).on_error(move |error| {
        io::Write::write_all(&mut hook.clone(), format!("{error:?} {}", chain(error)).as_bytes())
            .unwrap();
    });
    let running = started(failing(builder, hold)).await;
    for (name, kind) in WAYS {
        let new = match name {
            "bytes" => NewJob::bytes("bytes", "text/plain", MARKER),
            "strict" => NewJob::new(name, &json!({ MARKER: 1 })),
            _ => NewJob::new(name, MARKER),
        };
        let new = new.group("g").reference(name);
        let shown = format!("{new:?}");
        assert!(!shown.contains(MARKER), "{shown}");
        let id = seriatim::enqueue(pool, new).await.unwrap().id();
        let done = ended(pool, id).await;
        let shown = format!("{done:?}");
        assert!(shown.contains("(redacted)") && !shown.contains(MARKER), "{shown}");
        if name == "fine" {
            assert_eq!(done.result, Some(json!(MARKER)));
        } else {
            let failure = done.error.unwrap();
            assert_eq!(
                (done.status, failure.kind),
                (JobStatus::Failed, kind),
                "{name} {failure:?}"
            );
            assert!(!format!("{failure:?} {:?}", done.history).contains(MARKER), "{failure:?}");
        }
        let why = Client::default().explain_job(pool, id).await.unwrap().unwrap();
        assert!(!format!("{why} {why:?}").contains(MARKER), "{why}");
    }
    // Nor in what is said of a session whose last statement has recorded the result of the job
    // before.
    let turn = [MARKER, "second"].map(|data| NewJob::new("turn", data).group("g").max_attempts(2));
    let second = seriatim::enqueue_many(pool, turn).await.unwrap()[1].id();
    job_when(pool, second, |job| job.status == JobStatus::Started && job.attempts == 1).await;
    let why = Client::default().explain_job(pool, second).await.unwrap().unwrap();
    let why = format!("{why} {why:?}");
    assert!(!why.contains(MARKER) && !why.contains(&hex()), "{why}");
    // Nor in what a producer is told by a constraint of the host, whose detail quotes the row.
    let closed = seriatim::enqueue(pool, NewJob::new("closed", MARKER)).await.unwrap_err();
    assert!(chain(&closed).contains("host_says_no_data"), "{closed}");
    assert!(!format!("{closed:?} {}", chain(&closed)).contains(MARKER), "{closed:?}");
    let source = std::error::Error::source(&closed).unwrap();
    let source = source.downcast_ref::<sqlx::Error>().unwrap().as_database_error().unwrap();
    let detail = source.downcast_ref::<PgDatabaseError>().detail().unwrap();
    assert!(detail.contains(MARKER), "who asks for it gets it: {detail}");

    running.shutdown(Duration::from_secs(5)).await;
    for (what, lines) in [("a log line", lines), ("a reported error", &reported)] {
        let text = lines.text();
        let leak = text.lines().find(|line| line.contains(MARKER));
        assert_eq!(leak, None, "{what}");
        assert!(!text.contains(&hex()), "{what} has it as hex");
    }
}

/// As it stands in a literal of the library.
fn hex() -> String {
    MARKER.bytes().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_jobs_carry_is_in_no_log_and_no_error() {
    let lines = Lines::start();
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_mins(10))]) {
        fail_in_every_way(hold, &lines).await;
    }
    let text = lines.text();
    for said in ["job failed", "job succeeded", "no luck", "it broke", "invalid type: string"] {
        assert!(text.contains(said), "the log has no {said:?}");
    }
}

#[tokio::test]
async fn a_received_job_shows_nothing_of_what_it_carries() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    let jobs = [NewJob::new("q", MARKER), NewJob::bytes("q", "text/plain", MARKER)];
    client.enqueue_many(pool, jobs).await.unwrap();
    for _ in 0..2 {
        let received = client.receive(pool, Receive::new("q")).await.unwrap().remove(0);
        let shown = format!("{received:?}");
        assert!(shown.contains("(redacted)") && !shown.contains(MARKER), "{shown}");
        let error = received.decode::<u32>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains(MARKER), "{error}");
        client.ack_with(pool, &received.receipt, MARKER).await.unwrap();
        assert_eq!(job(pool, received.id).await.result, Some(json!(MARKER)));
    }
    by_hand(
        pool,
        "alter table seriatim.job add constraint host_says_no check (result is null) not valid",
    )
    .await;
    client.enqueue(pool, NewJob::new("q", &Value::Null)).await.unwrap();
    let received = client.receive(pool, Receive::new("q")).await.unwrap().remove(0);
    let refused = client.ack_with(pool, &received.receipt, MARKER).await.unwrap_err();
    assert!(chain(&refused).contains("host_says_no"), "{refused}");
    assert!(!format!("{refused:?} {}", chain(&refused)).contains(MARKER), "{refused:?}");
    let bytes = seriatim::Bytes::from(MARKER.as_bytes().to_vec());
    assert_eq!(format!("{bytes:?}"), "Bytes(12 bytes)");
    let there: i64 = jobs_where(pool, "result is null").await;
    assert_eq!(there, 1, "and nothing was written");
}

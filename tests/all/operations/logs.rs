//! The log of jobs: spans around enqueues and handlers, one event for each ended attempt.

use std::time::Duration;

use serde_json::json;
use seriatim::{Client, Hold, JobError, NewJob, OutOfAttempts, Processor, RetryPolicy};
use sqlx::PgPool;

use crate::support::logged::Logged;
use crate::support::{
    Errors, Log, database, drained, ended, enqueue, handler, handler_with, processor, queue,
    started,
};

/// The lines that have all of these words.
fn lines(logged: &Logged, words: &[&str]) -> Vec<String> {
    let text = logged.text();
    let has_all = |line: &&str| words.iter().all(|words| line.contains(words));
    text.lines().filter(has_all).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_panic_is_a_warning_with_its_place() {
    let database = database().await;
    let logged = Logged::default();
    let _guard = logged.start();
    let run = handler(async |_, _| panic!("as asked"));
    let line = line!() - 1;
    let builder = processor(&database, 10).await.queue(queue("q").retry(RetryPolicy::new(1)), run);
    let running = builder.build().unwrap().start().await.unwrap();
    let id = enqueue(database.pool(), "q", "g", 1).await;
    ended(database.pool(), id).await;
    running.shutdown(Duration::from_secs(5)).await;
    let place = format!("logs.rs:{line}:");
    let of_job = format!("job={id}");
    let told = lines(&logged, &["WARN", "the handler panicked", "queue=\"q\"", &of_job, &place]);
    assert_eq!(told.len(), 1, "{}", logged.text());
}

async fn attempts_are_logged(hold: Hold) {
    let database = database().await;
    let pool = database.pool();
    let logged = Logged::default();
    let _guard = logged.start();
    let run = handler(async |job, _| {
        tracing::info!("in the handler");
        if job.attempt() == 1 {
            return Err(JobError::retry("not yet"));
        }
        Err(JobError::fail("never"))
    });
    let options = queue("mails").hold(hold).out_of_attempts(OutOfAttempts::Halt);
    let running = processor(&database, 10).await.queue(options, run).build().unwrap();
    let running = running.start().await.unwrap();
    let job = NewJob::new("mails", &"secret").group("it's g").name("welcome").reference("r-1");
    let id = seriatim::enqueue(pool, job).await.unwrap().id();
    ended(pool, id).await;
    running.shutdown(Duration::from_secs(5)).await;

    let of_job = format!("job={id}");
    let inside = lines(&logged, &["in the handler", "group=\"it's g\"", &of_job]);
    assert_eq!(inside.len(), 2, "{}", logged.text());
    assert!(inside[1].contains("attempt=2") && inside[1].contains("queue=\"mails\""), "{inside:?}");
    let fields = [
        "seriatim::job",
        "queue=\"mails\"",
        "group=\"it's g\"",
        &*of_job,
        "name=\"welcome\"",
        "reference=\"r-1\"",
        "duration_ms=",
    ];
    let retried = ["INFO", "outcome=\"retried\"", "attempt=1", "error.kind=\"error\"", "not yet"];
    assert_eq!(lines(&logged, &[&fields[..], &retried].concat()).len(), 1, "{}", logged.text());
    let failed = ["ERROR", "outcome=\"failed\"", "attempt=2", "error.kind=\"permanent\"", "never"];
    let failed = lines(&logged, &[&fields[..], &failed].concat());
    assert_eq!(failed.len(), 1, "{}", logged.text());
    assert!(failed[0].contains(r"`seriatim lane mails 'it'\''s g'`"), "{failed:?}");
    assert!(!logged.text().contains("secret"), "{}", logged.text());
}

#[tokio::test]
async fn each_attempt_has_a_span_and_an_event() {
    attempts_are_logged(Hold::Transaction).await;
}

#[tokio::test]
async fn each_attempt_has_a_span_and_an_event_under_a_lease() {
    attempts_are_logged(Hold::Lease(Duration::from_secs(30))).await;
}

#[tokio::test]
async fn spans_have_the_fields_of_their_calls_and_events_the_producers_trace() {
    let database = database().await;
    let pool = database.pool();
    let logged = Logged::default();
    let _guard = logged.start();
    let client = Client::default().enqueue_layer(|_| tracing::info!("in the enqueue"));
    let run = handler(async |_, _| {
        tracing::info!("in the handler");
        Err(JobError::fail("never"))
    });
    let running = processor(&database, 10).await.queue(queue("mails"), run).build().unwrap();
    let running = running.start().await.unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let job = NewJob::new("mails", &"secret").group("g").header("traceparent", parent);
    let id = client.enqueue(pool, job).await.unwrap().id();
    ended(pool, id).await;
    let job = NewJob::new("mails", &"secret").header("traceparent", "malformed");
    let malformed = client.enqueue_many(pool, [job]).await.unwrap()[0].id();
    ended(pool, malformed).await;
    running.shutdown(Duration::from_secs(5)).await;

    let send = [
        "send{",
        "otel.name=send mails",
        "otel.kind=\"producer\"",
        "messaging.system=\"seriatim\"",
    ];
    let send = lines(&logged, &[&send[..], &["in the enqueue"]].concat());
    assert_eq!(send.len(), 2, "{}", logged.text());
    assert!(send[0].contains("messaging.seriatim.message.group=\"g\""), "{send:?}");
    assert!(send[1].contains("messaging.batch.message_count=1"), "{send:?}");
    let process = ["process{", "otel.name=process mails", "in the handler"];
    let process = lines(&logged, &process);
    assert_eq!(process.len(), 2, "{}", logged.text());
    // The handler's own lines stay short.
    assert!(!process.iter().any(|line| line.contains("messaging.")), "{process:?}");
    let of_trace = lines(&logged, &["outcome=\"failed\"", &format!("trace_id={trace}")]);
    assert_eq!(of_trace.len(), 1, "{}", logged.text());
    assert!(of_trace[0].contains(&format!("job={id}")), "{of_trace:?}");
    assert_eq!(lines(&logged, &["trace_id="]).len(), 1, "{}", logged.text());
    assert!(!logged.text().contains("secret"), "{}", logged.text());
}

/// The environment variable with the database that [`child`] works on.
const DATABASE: &str = "SERIATIM_TEST_LOGS";

/// Other tests' subscribers decide what is logged at DEBUG, so this has a process of its own.
#[tokio::test]
async fn each_success_of_a_turn_has_its_event() {
    let database = database().await;
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["operations::logs::child", "--exact", "--ignored", "--nocapture"])
        .env(DATABASE, database.url())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    let event = |line: &&str| {
        let words = ["DEBUG", "outcome=\"succeeded\"", "duration_ms=", "attempt=1"];
        words.iter().all(|words| line.contains(words))
    };
    assert_eq!(said.lines().filter(event).count(), 2 * 7, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a process of its own"]
async fn child() {
    let subscriber = tracing_subscriber::fmt().with_ansi(false);
    subscriber.with_max_level(tracing::Level::DEBUG).init();
    let Ok(url) = std::env::var(DATABASE) else { return };
    let pool = PgPool::connect(&url).await.unwrap();
    for hold in [Hold::Transaction, Hold::Lease(Duration::from_secs(30))] {
        let jobs = (0..7).map(|n| NewJob::new("q", &n).group("g"));
        seriatim::enqueue_many(&pool, jobs).await.unwrap();
        let options = queue("q").hold(hold).time_slice(Duration::from_secs(30));
        let run = handler(async |_, data| Ok(data));
        let running = started(Processor::builder(pool.clone()).queue(options, run)).await;
        drained(&pool, "q").await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_is_named() {
    let database = database().await;
    let (errors, log) = (Errors::default(), Log::default());
    let run = handler_with(log.clone(), async |log, _, data| {
        if data == "blocks" {
            std::thread::sleep(Duration::from_secs(1));
            log.add("blocked");
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            log.add("waited");
        }
        Ok(json!(null))
    });
    let builder = errors.of(processor(&database, 10).await);
    let running =
        started(builder.blocked_after(Duration::from_millis(200)).queue(queue("q"), run)).await;
    let waits = NewJob::new("q", &"waits").group("a");
    seriatim::enqueue(database.pool(), waits).await.unwrap();
    let blocks = NewJob::new("q", &"blocks").group("b");
    let id = seriatim::enqueue(database.pool(), blocks).await.unwrap().id();
    log.wait_for(2).await;
    running.shutdown(Duration::from_secs(5)).await;
    let said = errors.0.entries();
    let said: Vec<_> = said.iter().filter(|said| said.starts_with("HandlerBlocks")).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains(&format!("the handler of job {id} of queue \"q\"")), "{said:?}");
}

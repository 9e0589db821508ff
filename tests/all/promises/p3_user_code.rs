//! Every piece of the user's code may panic: its attempt is recorded as failed, and nothing else of
//! the processor is harmed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use seriatim::layer::{Ended, Layer, Next};
use seriatim::{
    ActiveJob, Client, FailureKind, Hold, JobError, JobHandler, JobStatus, RetryPolicy, async_trait,
};

use super::HOLD;
use crate::support::logged::Logged;
use crate::support::{
    Errors, Log, PATIENCE, database, ended, enqueue, handler, handler_with, job_of, processor,
    queue, started, until_ready,
};

/// Panics at its own place.
fn at(wanted: &str, place: &str) {
    assert!(wanted != place, "hostile at {place}");
}

struct Data(String);

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let place = String::deserialize(from)?;
        at(&place, "decoding");
        if place == "undecodable" { Err(D::Error::custom("no")) } else { Ok(Self(place)) }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        at(&self.0, "drop of data");
    }
}

struct Output(String);

impl Serialize for Output {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        at(&self.0, "serializing");
        to.serialize_str("done")
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        at(&self.0, "drop of the output");
    }
}

struct Checkpoint;

impl Serialize for Checkpoint {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("hostile at checkpoint")
    }
}

/// A value that panics when the handler's future is dropped.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        panic!("hostile at drop of the future")
    }
}

/// A panic whose payload panics.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("hostile at payload")
    }
}

struct Hostile(String);

impl fmt::Debug for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        at(&self.0, "debug");
        f.write_str("Hostile")
    }
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        at(&self.0, "display");
        f.write_str("refused")
    }
}

impl std::error::Error for Hostile {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        at(&self.0, "source");
        (self.0 == "its own source").then_some(self)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        at(&self.0, "drop of the error");
    }
}

/// An error of the handler's own, whose conversion panics.
enum OwnError {
    Converted(Hostile),
    Panics,
}

impl From<OwnError> for JobError {
    fn from(error: OwnError) -> Self {
        match error {
            OwnError::Converted(error) => Self::fail(error),
            OwnError::Panics => panic!("hostile at conversion"),
        }
    }
}

struct Handler;

#[async_trait]
impl JobHandler for Handler {
    type Data = Data;
    type Output = Output;
    type Error = OwnError;

    async fn handle(&self, job: &mut ActiveJob, data: Data) -> Result<Output, OwnError> {
        let place = data.0.clone();
        let waits = async {
            let _guard = Guard;
            tokio::time::sleep(PATIENCE * 2).await;
        };
        match &*place {
            "handler" => panic!("hostile at handler"),
            "payload" => std::panic::panic_any(Payload),
            "checkpoint" => drop(job.checkpoint(&Checkpoint).await),
            "conversion" => return Err(OwnError::Panics),
            "drop of the future" => waits.await,
            "drop of the future in tx" => {
                let _guard = Guard;
                let tx = job.tx().await.map_err(|e| OwnError::Converted(Hostile(e.to_string())))?;
                drop(sqlx::query("select pg_sleep(60)").execute(tx).await);
            }
            "serializing" | "drop of the output" | "drop of data" | "layer" | "span" => {}
            _ => return Err(OwnError::Converted(Hostile(place))),
        }
        Ok(Output(place))
    }
}

/// Hostile before and behind the handler.
struct HostileLayer;

#[async_trait]
impl Layer for HostileLayer {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        let name = job.name().unwrap_or_default().to_owned();
        let ended = next.run(job).await;
        at(&name, "layer");
        ended
    }

    fn begin_span(&self, job: &ActiveJob, _: &tracing::Span) {
        at(job.name().unwrap_or_default(), "span");
    }
}

const PLACES: [(&str, FailureKind, &str); 19] = [
    ("decoding", FailureKind::Panic, "hostile at decoding"),
    ("undecodable", FailureKind::Data, ""),
    ("drop of data", FailureKind::Panic, "hostile at drop of data"),
    ("handler", FailureKind::Panic, "hostile at handler"),
    ("payload", FailureKind::Panic, "a panic without words"),
    ("checkpoint", FailureKind::Panic, "hostile at checkpoint"),
    ("conversion", FailureKind::Panic, "hostile at conversion"),
    (
        "display",
        FailureKind::Panic,
        "the error of the handler panicked as it was read: hostile at display",
    ),
    (
        "source",
        FailureKind::Panic,
        "the error of the handler panicked as it was read: hostile at source",
    ),
    ("its own source", FailureKind::Permanent, "refused"),
    ("debug", FailureKind::Permanent, "refused"),
    (
        "drop of the error",
        FailureKind::Permanent,
        "refused (the error panicked as it was dropped: hostile at",
    ),
    ("serializing", FailureKind::Panic, "hostile at serializing"),
    ("drop of the output", FailureKind::Panic, "hostile at drop of the output"),
    (
        "drop of the future",
        FailureKind::Timeout,
        "the handler did not return within 2s, and panicked as it was dropped: hostile",
    ),
    (
        "drop of the future in tx",
        FailureKind::Timeout,
        "the handler did not return within 2s, and panicked as it was dropped: hostile",
    ),
    ("layer", FailureKind::Panic, "hostile at layer"),
    ("span", FailureKind::Panic, "hostile at span"),
    ("a plain error", FailureKind::Permanent, "refused"),
];

#[tokio::test(flavor = "multi_thread")]
async fn p3_each_panic_of_the_users_code_is_a_failed_attempt() {
    let database = database().await;
    let pool = database.pool();
    let errors = Errors::default();
    let log = Log::default();
    let note = handler_with(log.clone(), async |log, _, data| {
        log.add("ran");
        Ok(data)
    });
    let once = RetryPolicy::new(1);
    let hostile = queue("hostile").hold(HOLD).retry(once).timeout(Duration::from_secs(2));
    let builder = processor(&database, 12)
        .await
        .queue(hostile, Handler)
        .queue(queue("innocent").hold(HOLD), note)
        .layer(HostileLayer)
        .on_event(|_| panic!("hostile at on_event"));
    let running = started(errors.of(builder)).await;
    let begun = Instant::now();
    let mut jobs = Vec::new();
    for (n, (place, ..)) in PLACES.iter().enumerate() {
        let job = job_of("hostile", place, *place).name(*place);
        jobs.push(seriatim::enqueue(pool, job).await.unwrap().id());
        let innocent = job_of("innocent", &format!("g{n}"), n);
        seriatim::enqueue(pool, innocent).await.unwrap();
    }
    for ((place, kind, message), id) in PLACES.iter().zip(jobs) {
        let job = ended(pool, id).await;
        let error = job.error.unwrap_or_else(|| panic!("{place} has no error"));
        assert_eq!((job.status, job.attempts), (JobStatus::Failed, 1), "{place}");
        assert_eq!(
            (error.kind, error.message.starts_with(message)),
            (*kind, true),
            "{place}: {}",
            error.message
        );
    }
    crate::support::drained(pool, "innocent").await;
    assert_eq!(log.entries().len(), PLACES.len(), "each once");
    let innocent = Client::default().counts(pool, "innocent").await.unwrap();
    assert_eq!(innocent.failed, 0);
    // Long before a lease ends, and before a take-over.
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    until_ready(&running, true).await;
    assert_eq!(errors.but_slow_checks(), Vec::<String>::new());
    let report = running.shutdown(PATIENCE).await;
    assert_eq!((report.lost, report.still_running), (0, 0));
}

/// A log that panics once, at a line of the hostile job.
#[derive(Clone, Default)]
struct HostileLog(Arc<AtomicBool>);

impl std::io::Write for HostileLog {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let hostile = String::from_utf8_lossy(line).contains("break the log");
        assert!(!(hostile && self.0.swap(false, Ordering::Relaxed)), "hostile log");
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// One thread: each thread has a log of its own.
#[tokio::test]
async fn p3_a_task_that_panics_is_reported_and_runs_again() {
    let _beside = Logged::default().start();
    let log = HostileLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let _hostile = tracing::subscriber::set_default(subscriber.finish());
    let database = database().await;
    let pool = database.pool();
    let errors = Errors::default();
    let run = handler(async |_, data| match data.as_str() {
        Some(error) => Err(JobError::fail(error.to_owned())),
        None => Ok(data),
    });
    let builder = processor(&database, 12).await.queue(queue("q").hold(HOLD), run);
    let running = started(errors.of(builder)).await;
    for round in 0..2 {
        log.0.store(true, Ordering::Relaxed);
        // The log has the end of the attempt after its record: in the settler, or in the slot.
        let id = enqueue(pool, "q", "a", "break the log").await;
        let job = ended(pool, id).await;
        assert_eq!(job.error.unwrap().message, "break the log");
        let wanted = match HOLD {
            Hold::Lease(_) => "Panicked: the settler of leased jobs panicked",
            _ => "Panicked: a slot of queue \"q\" panicked",
        };
        let reported =
            |seen: &[String]| seen.iter().filter(|e| e.starts_with(wanted)).count() > round;
        errors.0.wait("the panic is reported", reported).await;
        if let Hold::Lease(_) = HOLD {
            let settler = |why: &String| why.contains("the settler of leased jobs panicked");
            assert!(running.health().reasons.iter().any(settler), "{:?}", running.health());
        }
        for n in 0..5 {
            let id = enqueue(pool, "q", &format!("g{n}"), n).await;
            assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
        }
        let id = enqueue(pool, "q", "a", 1).await;
        assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
        until_ready(&running, true).await;
    }
}

/// As a database whose encoding has only ASCII.
const ASCII: &str = "
    create function public.ascii() returns trigger language plpgsql as $$ begin
      if concat(new.error, new.history) ~ '[^\\x01-\\x7f]' then
        raise 'character has no equivalent' using errcode = 'untranslatable_character';
      end if;
      return new;
    end $$;
    create trigger ascii before update on seriatim.job for each row execute function public.ascii();";

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_failure_is_recorded_in_any_encoding() {
    let database = database().await;
    let pool = database.pool();
    crate::support::by_hand(pool, ASCII).await;
    let run = handler(async |_, data| match data["how"].as_str() {
        Some("panic") => panic!("\u{fc}ber \u{1f600}"),
        Some("fail") => Err(JobError::fail("cannot book \u{2192} \u{65e5}\u{672c}")),
        Some("chain") => {
            let source = std::io::Error::other("\u{e9}t\u{e9}");
            Err(JobError::fail(std::io::Error::other(sqlx::Error::Io(source))))
        }
        _ => Ok(data),
    });
    let options = queue("q").hold(HOLD).retry(RetryPolicy::new(1));
    let running = started(processor(&database, 8).await.queue(options, run)).await;
    let wanted = [
        ("panic", FailureKind::Panic, "\\u{fc}ber \\u{1f600}"),
        ("fail", FailureKind::Permanent, "cannot book \\u{2192} \\u{65e5}\\u{672c}"),
        ("chain", FailureKind::Permanent, "error communicating with database: \\u{e9}t\\u{e9}"),
    ];
    for (how, kind, message) in wanted {
        let id = enqueue(pool, "q", "g", serde_json::json!({ "how": how })).await;
        let behind = enqueue(pool, "q", "g", serde_json::json!({})).await;
        let job = ended(pool, id).await;
        let error = job.error.unwrap();
        assert_eq!((error.kind, &*error.message, job.attempts), (kind, message, 1), "{how}");
        assert_eq!(ended(pool, behind).await.status, JobStatus::Succeeded);
    }
    let report = running.shutdown(PATIENCE).await;
    assert_eq!(report.lost, 0);
}

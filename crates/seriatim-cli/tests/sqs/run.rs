//! Runs a program, and gives its history to the checker.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::future::join_all;
use serde_json::json;
use seriatim::Client;
use seriatim::primary::Follow;
use seriatim::testing::{Server, TestDatabase};
use seriatim_history::event::{Delayed, Enqueued, Event, Found};
use seriatim_history::{History, check, tell};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::sleep;

use crate::chaos::Chaos;
use crate::endpoint::Endpoint;
use crate::http::{Answer, Sqs};
use crate::processor;
use crate::producer::{Producer, QUEUE, by_sql};
use crate::program::{Act, Program, Sabotage};
use crate::recorder::{Lines, Recorder, now};
use crate::size::size;

/// How long nothing may come to an end before what is left counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The promises that it broke, and how often.
    pub broken: Vec<String>,
    /// The violations as stories.
    pub told: String,
    pub events: usize,
    pub jobs: usize,
    pub attempts: usize,
    /// Requests without an answer, and what else cost attempts.
    pub faults: usize,
    text: String,
}

pub async fn run(program: &Program) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let crashes = |act: &Act| matches!(act, Act::KillPostgres | Act::CrashPostgres | Act::FailOver);
    let postgres = if program.acts.iter().any(|(_, act)| crashes(act)) {
        Server::start().await
    } else {
        Server::shared().await
    };
    let postgres = postgres.unwrap();
    let database = TestDatabase::create_on(&postgres).await.unwrap();
    let fails_over = program.acts.iter().any(|(_, act)| *act == Act::FailOver);
    let standby = Server::builder().standby_of(&postgres);
    let standby = if fails_over { Some(standby.start().await.unwrap()) } else { None };
    let (url, pool) = connect(&database, standby.as_ref()).await;
    let lines = Lines::default();
    let mut random = Rng::with_seed(program.seed);
    let chaos = Chaos {
        postgres,
        standby,
        endpoints: Vec::new(),
        recorder: Recorder::new(&lines, "chaos"),
        lines: lines.clone(),
        random: random.fork(),
        sabotage: program.sabotage,
        consumers: Vec::new(),
        begun: 0,
    };
    let mut chaos = begin(chaos, program, &url, folder.path()).await;

    let servers = chaos.servers();

    let recorder = |name: &str| Recorder::new(&lines, name);
    let pool = &pool;
    let running = program.processor.then(|| processor::start(pool.clone(), recorder("processor")));
    let producers = program.producers.iter().enumerate().map(|(n, messages)| {
        let producer = Producer {
            sqs: Sqs::new(&servers),
            recorder: recorder(&format!("p{n}")),
            random: random.fork(),
            groups: program.groups,
            sabotage: program.sabotage,
        };
        producer.run(*messages)
    });
    let producers: Vec<_> = producers.collect();
    let sql = by_sql(
        pool.clone(),
        recorder("sql"),
        random.fork(),
        program.groups,
        program.by_sql,
        program.processor,
    );
    tokio::join!(join_all(producers), sql, chaos.run(&program.acts));
    drain(pool, patience(program)).await;
    chaos.recorder.note(Event::Drained { at: now() });
    chaos.end().await;
    if let Some(running) = running {
        running.shutdown(Duration::from_secs(1)).await;
    }
    for endpoint in &mut chaos.endpoints {
        assert!(endpoint.end().await, "a server ends in order");
    }
    for server in 0..2 {
        let log = std::fs::read_to_string(log_of(folder.path(), server)).unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }
    let events = std::mem::take(&mut *lines.lock().unwrap());
    let outcome = decide(events, pool).await;
    if !fails_over {
        database.remove().await.unwrap();
    }
    outcome
}

fn log_of(folder: &Path, server: usize) -> PathBuf {
    folder.join(format!("server-{server}.log"))
}

/// Returns the URL of the server, or of two that follow each other, and a pool.
async fn connect(database: &TestDatabase, standby: Option<&Server>) -> (String, PgPool) {
    let Some(standby) = standby else { return (database.url(), database.pool().clone()) };
    let (url, other) = (database.url(), standby.url_of(database.name()));
    let other: PgConnectOptions = other.parse().unwrap();
    let host = format!("{},{}:{}", host_of(&url), other.get_host(), other.get_port());
    let url = url.replacen(&host_of(&url), &host, 1);
    let options = PgPoolOptions::new().acquire_timeout(Duration::from_secs(5));
    let pool = Follow::url(&url).unwrap().connect(options).await.unwrap();
    (url, pool)
}

/// Returns the host and port of a URL, as they stand in it.
fn host_of(url: &str) -> String {
    let options: PgConnectOptions = url.parse().unwrap();
    format!("{}:{}", options.get_host(), options.get_port())
}

/// Starts the SQS servers and the consumers.
async fn begin(mut chaos: Chaos, program: &Program, url: &str, folder: &Path) -> Chaos {
    for server in 0..2 {
        chaos.endpoints.push(Endpoint::start(url.to_owned(), log_of(folder, server)).await);
    }
    let create = json!({"QueueName": QUEUE, "Attributes": {"FifoQueue": "true"}});
    let created = Sqs::new(&chaos.servers()).ask("CreateQueue", &create).await;
    assert!(matches!(created, Answer::Done(_)), "{created:?}");
    for _ in 0..program.consumers {
        chaos.begin_consumer();
    }
    chaos
}

/// Messages that are handled for too long never end. A plain run does not wait for that: some have
/// overlapped within seconds.
fn patience(program: &Program) -> Duration {
    match program.sabotage {
        Some(Sabotage::Overstay) => size(Duration::from_secs(6), PATIENCE),
        _ => PATIENCE,
    }
}

/// Waits until nothing is left to do. The checker finds whatever never ends.
async fn drain(pool: &PgPool, patience: Duration) {
    let (mut last, mut changed) = (u64::MAX, Instant::now());
    while changed.elapsed() < patience {
        if let Ok(counts) = Client::default().counts(pool, QUEUE).await {
            if counts.unfinished() == 0 {
                return;
            }
            if counts.unfinished() != last {
                (last, changed) = (counts.unfinished(), Instant::now());
            }
        }
        // The database has no event to wait for here.
        sleep(Duration::from_millis(20)).await;
    }
}

async fn decide(events: Vec<Event>, pool: &PgPool) -> Outcome {
    // Messages that were received together may be deleted together.
    let head =
        Event::History { version: 1, uncertainty: 0, delayed: Delayed::Hold, followers: true };
    let rolled_back = |event: &Event| match event {
        Event::Enqueue { job, outcome: Enqueued::RolledBack, .. } => Some(job.0.clone()),
        _ => None,
    };
    let unwanted: Vec<String> = events.iter().filter_map(rolled_back).collect();
    let jobs: Vec<(String, String)> = sqlx::query_as(
        "select coalesce(data, convert_from(payload, 'UTF8')::jsonb)->>'name', status::text
         from seriatim.job where queue = $1",
    )
    .bind(QUEUE)
    .fetch_all(pool)
    .await
    .unwrap();
    let faults = events.iter().filter(|event| matches!(event, Event::Fault { .. })).count();
    let attempts = events.iter().filter(|event| matches!(event, Event::Start { .. })).count();
    let mut text = String::new();
    for event in [head].iter().chain(&events) {
        text += &serde_json::to_string(event).unwrap();
        text.push('\n');
    }
    let mut there: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, status) in &jobs {
        there.entry(name).or_default().push(status);
    }
    for job in &History::read(text.as_bytes()).unwrap().jobs {
        let status = match there.get(&*job.name.0).map(|of| of[0]) {
            None => Found::Missing,
            Some("succeeded") => Found::Succeeded,
            Some("failed") => Found::Failed,
            Some("cancelled") => Found::Cancelled,
            Some(_) => Found::Waiting,
        };
        let status = Event::Status { job: job.name.clone(), status, forgiven: None };
        text += &serde_json::to_string(&status).unwrap();
        text.push('\n');
    }
    let history = History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let violations = check(&history);
    let mut broken: Vec<String> =
        violations.counts.iter().map(|(promise, n)| format!("{promise}: {n}")).collect();
    let doubled = there.iter().filter(|(_, of)| of.len() > 1).count();
    if doubled > 0 {
        broken.push(format!("one message is one job: {doubled}"));
    }
    if let Some(job) = unwanted.iter().find(|job| there.contains_key(job.as_str())) {
        broken.push(format!("{job} was rolled back, and is there"));
    }
    let told = violations.kept.iter().map(|of| tell(&history, of)).collect();
    let (events, jobs) = (history.events, history.jobs.len());
    Outcome { broken, told, events, jobs, attempts, faults, text }
}

/// Keeps a history. Returns where it is.
pub fn keep(outcome: &Outcome, name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sqs-history-{name}.jsonl"));
    std::fs::write(&file, &outcome.text).unwrap();
    file
}

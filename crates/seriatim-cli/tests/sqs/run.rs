//! Runs a program, and gives its history to the checker.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures::future::join_all;
use serde_json::json;
use seriatim::Client;
use seriatim::testing::{Server, TestDatabase};
use seriatim_history::event::{Delayed, Enqueued, Event, Found};
use seriatim_history::{History, check, tell};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::chaos::Chaos;
use crate::endpoint::Endpoint;
use crate::http::{Answer, Sqs};
use crate::processor;
use crate::producer::{Producer, QUEUE, by_sql};
use crate::program::{Act, Program};
use crate::recorder::{Lines, Recorder, now};

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
    let crashes = |(_, act): &(u64, Act)| matches!(act, Act::KillPostgres | Act::CrashPostgres);
    let postgres = if program.acts.iter().any(crashes) {
        Server::start().await
    } else {
        Server::shared().await
    };
    let database = TestDatabase::create_on(&postgres.unwrap()).await.unwrap();
    let lines = Lines::default();
    let mut random = Rng::with_seed(program.seed);
    let mut chaos = begin(program, &database, folder.path(), &lines, &mut random).await;

    let servers = chaos.servers();

    let recorder = |name: &str| Recorder::new(&lines, name);
    let pool = database.pool();
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
    drain(pool).await;
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
    database.remove().await.unwrap();
    outcome
}

fn log_of(folder: &Path, server: usize) -> PathBuf {
    folder.join(format!("server-{server}.log"))
}

async fn begin(
    program: &Program,
    database: &TestDatabase,
    folder: &Path,
    lines: &Lines,
    random: &mut Rng,
) -> Chaos {
    let mut chaos = Chaos {
        postgres: database.server().clone(),
        endpoints: Vec::new(),
        recorder: Recorder::new(lines, "chaos"),
        lines: lines.clone(),
        random: random.fork(),
        sabotage: program.sabotage,
        consumers: Vec::new(),
        begun: 0,
    };
    for server in 0..2 {
        chaos.endpoints.push(Endpoint::start(database.url(), log_of(folder, server)).await);
    }
    let create = json!({"QueueName": QUEUE, "Attributes": {"FifoQueue": "true"}});
    let created = Sqs::new(&chaos.servers()).ask("CreateQueue", &create).await;
    assert!(matches!(created, Answer::Done(_)), "{created:?}");
    for _ in 0..program.consumers {
        chaos.begin_consumer();
    }
    chaos
}

/// Waits until nothing is left to do. The checker finds whatever never ends.
async fn drain(pool: &PgPool) {
    let (mut last, mut changed) = (u64::MAX, Instant::now());
    while changed.elapsed() < PATIENCE {
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

//! Runs a program on the real thing, and gives its history to the checker.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use seriatim::{Client, Missed};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::chaos::{Chaos, sabotage};
use super::features;
use super::produce::{ATTEMPTS, Producer, QUEUE, group};
use super::program::Program;
use super::read_back::{line, read_back};
use super::receivers::Receiver;
use super::recorder::{Recorder, now, path};
use super::shrink::candidates;
use super::worker::STRANDED;
use crate::support::{PATIENCE, by_hand, database};
use seriatim_history::event::Event;
use seriatim_history::{History, check, tell};

const SCHEDULE: &str = "s";
/// A job for each of its times, also if no worker was there.
pub const EACH: Missed = Missed::All { at_most: 1_000 };

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The promises that it broke, and the stories.
    pub broken: Vec<String>,
    pub told: String,
    pub events: usize,
    pub jobs: usize,
    /// Follow-ups of batches, and jobs of the schedule.
    pub made: usize,
    pub text: String,
}

pub async fn run(program: &Program) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let database = database().await;
    by_hand(database.pool(), "create table public.effect (key text not null)").await;
    let small = PgPoolOptions::new().max_connections(6);
    let pool = database.pool_with(small).await.unwrap();
    let recorder = Recorder::new(folder.path(), "chaos");
    features::set_limits(&pool, &recorder, program.limits, ATTEMPTS).await;
    let begin = now();
    let mut batches = Vec::new();
    for (number, all_succeed) in program.batches.iter().enumerate() {
        let name = features::batch(number);
        let id = features::open(&pool, &recorder, &name, &group(0).0, *all_succeed).await;
        batches.push(id.unwrap());
    }
    if let Some(number) = program.schedule {
        features::start_schedule(&pool, SCHEDULE, &group(number).0, EACH).await;
    }
    let (url, place) = (database.url(), folder.path().to_owned());
    let mut chaos = Chaos::new(pool.clone(), url.clone(), place, recorder.clone(), program);
    chaos.one_is_ready().await;

    let mut files = vec!["chaos".to_owned()];
    let mut producers = Vec::new();
    for (number, steps) in program.producers.iter().enumerate() {
        let name = format!("p{number}");
        let recorder = Recorder::new(folder.path(), &name);
        let producer = Producer::new(url.clone(), pool.clone(), number, recorder, batches.clone());
        producers.push(producer.run(steps));
        files.push(name);
    }
    let all = async {
        tokio::join!(futures::future::join_all(producers), chaos.run(&program.chaos));
        if program.schedule.is_some() {
            features::end_schedule(&pool, &recorder, SCHEDULE, true).await;
        }
        drain(&pool, &chaos, program).await;
    };
    files.push("receiver".to_owned());
    let its = Recorder::new(folder.path(), "receiver");
    let receiver = Receiver { pool: pool.clone(), recorder: its };
    tokio::select! {
        () = all => {}
        never = receiver.run(program.receives) => match never {},
        never = sabotage(&pool, program.sabotage) => match never {},
    }
    features::note_made(&pool, &recorder, 0, begin).await;
    recorder.note(&Event::Drained { at: now() });
    chaos.end().await;
    files.extend(chaos.names.iter().cloned());

    let mut text = head(program);
    for file in files {
        text += &std::fs::read_to_string(path(folder.path(), &file)).unwrap_or_default();
    }
    let seen = History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    read_back(&pool, &seen, 0, &[], &mut text).await;
    pool.close().await;
    decide(text)
}

fn head(program: &Program) -> String {
    let mut text = String::new();
    let event = Event::History {
        version: 1,
        uncertainty: 0,
        delayed: seriatim_history::event::Delayed::Hold,
        followers: program.followers(),
    };
    line(&mut text, &event);
    text
}

/// Waits until nothing is left to do. The checker finds whatever never comes to an end.
async fn drain(pool: &PgPool, chaos: &Chaos, program: &Program) {
    let patience = if program.sabotage.is_some() { PATIENCE / 6 } else { PATIENCE };
    let (mut last, mut changed) = (None, Instant::now());
    loop {
        chaos.unhalt_group().await;
        // First: a batch that has ended by now has its follow-up among the jobs.
        let batches_go_on = features::batches_go_on(pool).await.unwrap();
        let unfinished = Client::default().counts(pool, QUEUE).await.unwrap().unfinished();
        let left = Some((unfinished, batches_go_on));
        if left == Some((0, false)) || changed.elapsed() > patience {
            return;
        }
        if left != last {
            (last, changed) = (left, Instant::now());
        }
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn decide(text: String) -> Outcome {
    let history = History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let violations = check(&history);
    let mut broken: Vec<_> =
        violations.counts.iter().map(|(promise, n)| format!("{promise}: {n}")).collect();
    let told = violations.kept.iter().map(|its| tell(&history, its)).collect();
    // Whatever else goes wrong, nothing is left to the sweep.
    let stranded = history.faults.iter().filter(|fault| fault.what.starts_with(STRANDED)).count();
    if stranded > 0 {
        broken.push(format!("{STRANDED}: {stranded}"));
    }
    let follow_ups: usize = history.batches.iter().map(|batch| batch.follow_ups.len()).sum();
    let made = follow_ups + history.schedules.iter().map(|its| its.jobs.len()).sum::<usize>();
    Outcome { broken, told, events: history.events, jobs: history.jobs.len(), made, text }
}

/// Makes a program that failed smaller, as long as that fails and it is to go on: the smallest one,
/// and what it came to.
pub async fn shrink(
    mut program: Program,
    mut failed: Outcome,
    go_on: impl Fn(&Program) -> bool,
) -> (Program, Outcome) {
    'smaller: loop {
        for candidate in candidates(&program) {
            // A failure that depends on timing does not come every time.
            for _ in 0..2 {
                if !go_on(&program) {
                    return (program, failed);
                }
                let outcome = run(&candidate).await;
                if !outcome.broken.is_empty() {
                    (program, failed) = (candidate, outcome);
                    continue 'smaller;
                }
            }
        }
        return (program, failed);
    }
}

/// Keeps a history that broke a promise. Returns where it is.
pub fn keep(outcome: &Outcome, name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.jsonl"));
    std::fs::write(&file, &outcome.text).unwrap();
    file
}

//! P2: no two jobs of a group are in a handler at the same moment, over all processors and
//! processes.

use std::time::{Duration, Instant};

use futures::future::join_all;
use seriatim::testing::TestDatabase;
use seriatim::{Processor, Running};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::{database, worker};
use crate::support::witness::{self, Findings, Inside, Step, findings, take_step};
use crate::support::worker_process::{Settings, WorkerProcess};
use crate::support::{Log, handler_with, jobs_where, nothing_remains, size, started};

const QUEUES: [&str; 2] = ["first", "second"];
const GROUPS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A number that the environment may raise for a longer run. The holds do one half each.
fn sized(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).map_or(usual, |number| number.parse().unwrap()).div_ceil(2)
}

fn step(producer: u32, n: u32) -> Step {
    Step { producer, n, ms: fastrand::u64(0..=10) }
}

/// Enqueues `jobs`, each for a random queue and group, in statements of one to ten.
async fn produce(pool: &PgPool, producer: u32, first: u32, jobs: u32) {
    let mut from = first;
    while from < first + jobs {
        let to = (from + fastrand::u32(1..=10)).min(first + jobs);
        let batch = (from..to).map(|n| {
            let (queue, group) = (fastrand::choice(QUEUES), fastrand::choice(GROUPS));
            witness::job(queue.unwrap(), group, &step(producer, n))
        });
        seriatim::enqueue_many(pool, batch).await.unwrap();
        from = to;
    }
}

/// One producer with 50 jobs first, then two with 50 jobs in parallel, so often.
async fn produce_rounds(pool: &PgPool, rounds: u32) -> usize {
    for round in 0..rounds {
        let from = round * 50;
        if round % 2 == 0 {
            produce(pool, 0, from, 50).await;
        } else {
            tokio::join!(produce(pool, 1, from, 50), produce(pool, 2, from, 50));
        }
    }
    (rounds.div_ceil(2) * 50 + rounds / 2 * 100) as usize
}

/// Two producers in parallel.
async fn produce_at_random(pool: &PgPool, each: u32) -> usize {
    tokio::join!(produce(pool, 3, 0, each), produce(pool, 4, 0, each));
    2 * each as usize
}

/// Processors in this process, each with a slot for each queue.
async fn processors(database: &TestDatabase, inside: &Inside) -> Vec<Running> {
    let outside = database.pool_with(PgPoolOptions::new().max_connections(12)).await.unwrap();
    let starting = (0..size(5, 10)).map(|_| async {
        let pool = PgPoolOptions::new().max_connections(2);
        let mut builder = Processor::builder(database.pool_with(pool).await.unwrap());
        for queue in QUEUES {
            builder = builder.queue(
                super::queue(queue).concurrency(1),
                handler_with(
                    (outside.clone(), inside.clone()),
                    async |(outside, inside), job, data| {
                        let _entered = inside.enter(job);
                        take_step(job, &outside, data).await
                    },
                ),
            );
        }
        started(builder).await
    });
    join_all(starting).await
}

async fn shut_down(running: Vec<Running>) {
    join_all(running.into_iter().map(|running| running.shutdown(Duration::from_secs(5)))).await;
}

async fn all_done(pool: &PgPool) {
    witness::all_have_ended(pool).await;
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processors_in_a_process_lose_no_increment() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let inside = Inside::default();
    let running = processors(&database, &inside).await;

    let begun = Instant::now();
    let mut jobs = produce_rounds(pool, sized("SERIATIM_TEST_ROUNDS", size(6, 30))).await;
    all_done(pool).await;
    let rounds = (jobs, begun.elapsed());
    let begun = Instant::now();
    jobs += produce_at_random(pool, sized("SERIATIM_TEST_JOBS", size(60, 300))).await;
    all_done(pool).await;
    println!(
        "{} jobs in rounds in {:?}, {} at random in {:?}, up to {} groups at once",
        rounds.0,
        rounds.1,
        jobs - rounds.0,
        begun.elapsed(),
        inside.most(),
    );

    assert_eq!(findings(pool, jobs).await, Findings::default());
    assert_eq!(inside.overlaps(), [""; 0]);
    assert!(inside.most() > 1, "groups run side by side");
    shut_down(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_groups_the_increments_are_lost_that_show_an_overlap() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let inside = Inside::default();
    let running = processors(&database, &inside).await;
    let jobs = (0..50).map(|n| witness::job(QUEUES[0], None, &step(0, n)));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    all_done(pool).await;

    let found = findings(pool, 50).await;
    assert_ne!(found.lost_increments, [""; 0]);
    assert_ne!(inside.overlaps(), [""; 0]);
    assert_eq!((found.unfinished, found.not_once), (0, vec![]));
    shut_down(running).await;
}

/// Worker processes that are ready.
async fn workers(settings: &Settings, log: &Log) -> Vec<WorkerProcess> {
    let start = |n| WorkerProcess::start(format!("worker {n}"), settings, log);
    let workers: Vec<_> = (0..size(3, 5)).map(start).collect();
    log.wait("the workers are ready", |entries| {
        entries.iter().filter(|e| e.ends_with(": ready")).count() >= workers.len()
    })
    .await;
    workers
}

/// Returns the repairs of the sweep: nothing strands by itself.
fn stranded(log: &Log) -> Vec<String> {
    let mut errors = log.entries();
    errors.retain(|entry| entry.contains(": error: Stranded"));
    errors
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_lose_no_increment() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let mut settings = worker(database.url(), &QUEUES);
    settings.slots = 2;
    let log = Log::default();
    let workers = workers(&settings, &log).await;

    let begun = Instant::now();
    let mut jobs = produce_rounds(pool, sized("SERIATIM_TEST_ROUNDS", size(4, 10))).await;
    jobs += produce_at_random(pool, sized("SERIATIM_TEST_JOBS", size(60, 300))).await;
    all_done(pool).await;
    println!("{jobs} jobs in {} processes in {:?}", workers.len(), begun.elapsed());

    assert_eq!(findings(pool, jobs).await, Findings::default());
    assert_eq!(stranded(&log), [""; 0]);
    for worker in workers {
        worker.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_nothing_and_double_nothing() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let mut settings = worker(database.url(), &QUEUES);
    settings.slots = 2;
    settings.attempts = 100;
    let log = Log::default();
    let mut workers = workers(&settings, &log).await;

    let begun = Instant::now();
    let each = sized("SERIATIM_TEST_JOBS", size(80, 300));
    let kills = sized("SERIATIM_TEST_KILLS", size(4, 8));
    let producers = pool.clone();
    let producing = tokio::spawn(async move { produce_at_random(&producers, each).await });
    for kill in 0..kills {
        // Kills come at a share of the work, at random moments of whatever runs then.
        let share = i64::from(2 * each * kill / (kills + 1));
        witness::effects_are_there(pool, share).await;
        let at = fastrand::usize(..workers.len());
        workers.swap_remove(at).kill().await;
        let name = format!("successor {kill}");
        workers.push(WorkerProcess::start(name, &settings, &log));
    }
    let jobs = producing.await.unwrap();
    all_done(pool).await;
    let lost: i64 = jobs_where(pool, "attempts > 1").await;
    println!("{jobs} jobs with {kills} kills, which hit {lost}, in {:?}", begun.elapsed());

    assert_eq!(findings(pool, jobs).await, Findings::default());
    assert_eq!(stranded(&log), [""; 0]);
    for worker in workers {
        worker.end().await;
    }
}

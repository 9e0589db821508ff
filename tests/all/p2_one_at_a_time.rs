//! P2: no two jobs of a group are in a handler at the same moment, over all processors and processes.

use std::time::{Duration, Instant};

use seriatim::testing::TestDatabase;
use seriatim::{Processor, QueueOptions, RetryPolicy, Running};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::{database, drained, handler, nothing_remains};
use crate::witness::{self, Findings, Inside, Step, findings, take_step};

const QUEUES: [&str; 2] = ["first", "second"];
const GROUPS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A number that the environment may raise for a longer run.
fn sized(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).map_or(usual, |number| number.parse().unwrap())
}

fn step(producer: u32, n: u32) -> Step {
    Step {
        producer,
        n,
        ms: fastrand::u64(0..=10),
    }
}

/// Enqueues `jobs`, each for a random queue and group, one by one.
async fn produce(pool: &PgPool, producer: u32, first: u32, jobs: u32) {
    for n in first..first + jobs {
        let (queue, group) = (fastrand::choice(QUEUES), fastrand::choice(GROUPS));
        let job = witness::job(queue.unwrap(), group, &step(producer, n));
        seriatim::enqueue(pool, job).await.unwrap();
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

/// Ten processors in this process, each with a slot for each queue.
async fn ten_processors(database: &TestDatabase, inside: &Inside) -> Vec<Running> {
    let outside = database
        .pool_with(PgPoolOptions::new().max_connections(12))
        .await
        .unwrap();
    let mut running = Vec::new();
    for _ in 0..10 {
        let pool = PgPoolOptions::new().max_connections(2);
        let mut builder = Processor::builder(database.pool_with(pool).await.unwrap());
        for queue in QUEUES {
            let (outside, inside) = (outside.clone(), inside.clone());
            builder = builder.queue(
                options(queue).concurrency(1),
                handler(move |job, data| {
                    let (outside, inside) = (outside.clone(), inside.clone());
                    Box::pin(async move {
                        let _entered = inside.enter(job);
                        take_step(job, &outside, data).await
                    })
                }),
            );
        }
        running.push(builder.build().unwrap().start());
    }
    running
}

fn options(queue: &str) -> QueueOptions {
    QueueOptions::new(queue).retry(RetryPolicy::new(10).base(Duration::from_millis(10)))
}

async fn all_done(pool: &PgPool) {
    for queue in QUEUES {
        drained(pool, queue).await;
    }
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processors_in_a_process_lose_no_increment() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let inside = Inside::default();
    let running = ten_processors(&database, &inside).await;

    let begun = Instant::now();
    let mut jobs = produce_rounds(pool, sized("SERIATIM_TEST_ROUNDS", 100)).await;
    all_done(pool).await;
    let rounds = (jobs, begun.elapsed());
    let begun = Instant::now();
    jobs += produce_at_random(pool, sized("SERIATIM_TEST_JOBS", 500)).await;
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
    for running in running {
        running.shutdown(Duration::from_secs(5)).await;
    }
    database.remove().await.unwrap();
}

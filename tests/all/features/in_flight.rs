//! The limit of a queue's jobs in flight: exact over all processors, and after crashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use seriatim::testing::TestDatabase;
use seriatim::{NewJob, Processor, Running};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::{
    by_hand, database, drained, handler_with, job_of, jobs_where, nothing_remains, queue, size,
    started, value,
};

const LIMIT: usize = 3;

/// How many handlers are at work in this process, and how many were at most.
#[derive(Clone, Default)]
struct Inside {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    runs: Arc<AtomicUsize>,
}

struct Entered(Arc<AtomicUsize>);

impl Inside {
    fn enter(&self) -> Entered {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.runs.fetch_add(1, Ordering::SeqCst);
        Entered(Arc::clone(&self.now))
    }
}

/// Also where the handler is dropped.
impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Four processors with four slots each, on pools of their own.
async fn start(database: &TestDatabase, inside: &Inside) -> Vec<Running> {
    let mut running = Vec::new();
    for _ in 0..4 {
        let run = handler_with(inside.clone(), async |inside, _, _| {
            let _entered = inside.enter();
            // Makes runs overlap.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..30))).await;
            Ok(Value::Null)
        });
        let pool = PgPoolOptions::new().max_connections(4);
        let builder = Processor::builder(database.pool_with(pool).await.unwrap())
            .poll_interval(Duration::from_millis(50));
        running.push(started(builder.queue(queue("q"), run)).await);
    }
    running
}

/// 60 jobs in 30 groups, and 20 without one.
async fn fill(pool: &PgPool) {
    let grouped = (0..60).map(|n| job_of("q", &format!("g{}", n % 30), n));
    let ungrouped = (0..20).map(|n| NewJob::new("q", &n));
    seriatim::enqueue_many(pool, grouped.chain(ungrouped)).await.unwrap();
}

async fn limited() -> TestDatabase {
    let database = database().await;
    let limit = format!("insert into seriatim.queue (name, in_flight_limit) values ('q', {LIMIT})");
    by_hand(database.pool(), limit).await;
    database
}

async fn end(database: TestDatabase, running: Vec<Running>) {
    drained(database.pool(), "q").await;
    nothing_remains(database.pool()).await;
    assert_eq!(jobs_where(database.pool(), "status = 'succeeded'").await, 80);
    for running in running {
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_jobs_run_at_once_as_the_limit_says() {
    let database = limited().await;
    let inside = Inside::default();
    let running = start(&database, &inside).await;
    fill(database.pool()).await;
    drained(database.pool(), "q").await;
    assert_eq!(inside.most.load(Ordering::SeqCst), LIMIT);
    assert_eq!(inside.runs.load(Ordering::SeqCst), 80);
    end(database, running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_while_sessions_are_killed_and_all_ends() {
    let database = limited().await;
    let inside = Inside::default();
    let running = start(&database, &inside).await;
    fill(database.pool()).await;
    let mut killed = 0_i64;
    for kill in 0..size(5, 8) {
        // In the middle of the work, which takes some 20 ms for every three jobs.
        let runs = inside.runs.load(Ordering::SeqCst);
        while inside.runs.load(Ordering::SeqCst) < runs + 4 && runs < 60 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The sessions of holds, claims, settles, monitors and listeners alike.
        let sql = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid() \
             and backend_type = 'client backend' and (pid + {kill}) % 2 = 0"
        );
        killed += value::<i64>(database.pool(), sql).await;
    }
    drained(database.pool(), "q").await;
    let most = inside.most.load(Ordering::SeqCst);
    let runs = inside.runs.load(Ordering::SeqCst);
    println!("{killed} sessions killed, {runs} runs for 80 jobs, at most {most} at once");
    assert!(most <= LIMIT, "{most} at once");
    assert!(runs > 80, "no handler was hit");
    end(database, running).await;
}

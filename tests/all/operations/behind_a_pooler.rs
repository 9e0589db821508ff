//! Behind a transaction pooler a session lasts for a transaction: leases alone decide, and nothing
//! is left in sessions.

use std::time::{Duration, Instant};

use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, Row};

use crate::support::pooler::Pooler;
use crate::support::witness::{self, Findings, Step, findings};
use crate::support::worker_process::{Settings, WorkerProcess, announced};
use crate::support::{
    Log, database, enqueue, eventually, job_of, jobs_where, nothing_remains, size, value,
};

const SESSIONS: u32 = 10;

/// Reads the settings that a transaction pooler hands on to the next client.
const LEFT: &str = "select current_setting(name) from unnest(array[
    'statement_timeout', 'lock_timeout', 'enable_seqscan', 'enable_hashjoin', 'jit',
    'default_transaction_isolation', 'default_transaction_read_only']) name";

fn lease() -> Duration {
    Duration::from_secs(size(3, 4))
}

/// Two workers at work, one of which is killed while it runs a long job; how long that took to run
/// again.
async fn one_of_two_is_killed(lease: Option<Duration>, presence: bool) -> Option<Duration> {
    let database = database().await;
    let pool = database.pool();
    let pooler = match Pooler::start(&database, SESSIONS).await {
        Ok(pooler) => pooler,
        Err(reason) => {
            println!("skipped: there is no transaction pooler here: {reason}");
            return None;
        }
    };
    witness::prepare(pool).await;
    let url = pooler.url(&database);
    let settings = Settings { url, lease, presence, ..Settings::new(database.url(), &["q"]) };
    let log = Log::default();
    let doomed = WorkerProcess::start("doomed", &settings, &log);
    enqueue(pool, "q", "long", "wait outside").await;
    assert_eq!(announced(&log, "long", 1).await.worker, "doomed");
    let other = WorkerProcess::start("other", &settings, &log);
    other.is_ready(&log).await;
    let jobs = (0..200).map(|n| {
        let step = Step { producer: 0, n, ms: 10 };
        witness::job("q", Some(["a", "b", "c"][n as usize % 3]), &step)
    });
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    witness::effects_are_there(pool, 50).await;
    if presence {
        // A processor that thought it was present has noticed.
        let present = "select count(*) from seriatim.processor where presence_key is not null";
        eventually(pool, present, 0_i64).await;
    }

    let killed = Instant::now();
    doomed.kill().await;
    announced(&log, "long", 2).await;
    let took = killed.elapsed();
    witness::all_have_ended(pool).await;
    nothing_remains(pool).await;
    // The long one has no effect, and is not of the witness.
    let attempts: i64 = value(
        pool,
        "with gone as (delete from seriatim.job where data = '\"wait outside\"' returning attempts)
         select sum(attempts) from gone",
    )
    .await;
    assert_eq!(attempts, 2);
    assert_eq!(findings(pool, 200).await, Findings::default());

    let strangers = PgPoolOptions::new().max_connections(SESSIONS);
    let strangers = strangers.connect(&pooler.url(&database)).await.unwrap();
    let expected = left(&mut pool.acquire().await.unwrap()).await;
    let mut busy = Vec::new();
    for _ in 0..SESSIONS - 5 {
        // Kept open, so that the next one has another session.
        let mut tx = strangers.begin().await.unwrap();
        assert_eq!(left(&mut tx).await, expected);
        busy.push(tx);
    }
    drop(busy);
    other.end().await;
    strangers.close().await;
    drop(pooler);
    Some(took)
}

async fn left(session: &mut sqlx::PgConnection) -> Vec<String> {
    let rows = session.fetch_all(LEFT).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_job_runs_elsewhere_after_its_lease() {
    if let Some(took) = one_of_two_is_killed(Some(lease()), false).await {
        println!("worker killed behind a pooler, lease of {:?}: {took:.2?}", lease());
        // At least what was left of the lease after two thirds, and the grace.
        assert!(took > lease().mul_f64(0.65) && took < Duration::from_secs(15), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_locks_go_with_its_connection() {
    if let Some(took) = one_of_two_is_killed(None, false).await {
        println!("worker killed behind a pooler, locks: {took:.2?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_forgets_to_switch_presence_off_is_as_safe() {
    if let Some(took) = one_of_two_is_killed(Some(lease()), true).await {
        println!("worker killed behind a pooler with presence, lease of {:?}: {took:.2?}", lease());
        assert!(took > lease().mul_f64(0.65) && took < Duration::from_secs(15), "{took:?}");
    }
}

/// The driver sends a statement with arguments in two parts, and out of a transaction each may meet
/// another session.
#[tokio::test(flavor = "multi_thread")]
async fn without_prepared_statements_an_enqueue_needs_a_transaction() {
    let database = database().await;
    let pooler = match Pooler::start(&database, SESSIONS).await {
        Ok(pooler) => pooler,
        Err(reason) => {
            println!("skipped: there is no transaction pooler here: {reason}");
            return;
        }
    };
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(&pooler.url(&database)).await.unwrap();
    let refused = seriatim::enqueue(&pool, job_of("q", "g", 1)).await.map(drop);
    println!("an enqueue out of a transaction: {refused:?}");
    let mut tx = pool.begin().await.unwrap();
    seriatim::enqueue(&mut *tx, job_of("q", "g", 2)).await.unwrap();
    tx.commit().await.unwrap();
    let jobs: i64 = jobs_where(database.pool(), "true").await;
    // A later version of the pooler may know them.
    assert_eq!(jobs, 1 + i64::from(refused.is_ok()));
    pool.close().await;
    drop(pooler);
}

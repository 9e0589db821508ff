//! A claim whose commit lost its answer: its process lives and knows nothing of it, so no other
//! process would free its group.

use std::time::{Duration, Instant};

use serde_json::json;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Hold, NewJob};
use sqlx::Executor;

use crate::support::{
    Log, by_hand, drained, eventually, handler_with, job_of, nothing_remains, queue, serve,
};

const LEASE: Duration = Duration::from_mins(10);

/// Jobs that exist while no other commit gets through.
async fn enqueue_aside(database: &TestDatabase, jobs: Vec<NewJob>) {
    let mut conn = database.pool().acquire().await.unwrap();
    conn.execute("set synchronous_commit = local").await.unwrap();
    seriatim::enqueue_many(&mut *conn, jobs).await.unwrap();
    conn.execute("reset synchronous_commit").await.unwrap();
}

async fn runs_soon(group: Option<&str>) {
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let pool = database.pool();
    let log = Log::default();
    let run = handler_with(log.clone(), async |log, _, data| {
        log.add(data.to_string());
        Ok(json!(null))
    });
    let options = queue("q").hold(Hold::Lease(LEASE));
    let _running = serve(&database, 4, options, run).await;
    let present = "select count(*) from seriatim.processor where presence_key is not null";
    eventually(pool, present, 1_i64).await;
    by_hand(pool, "alter system set synchronous_standby_names = 'nobody'").await;
    by_hand(pool, "select pg_reload_conf()").await;
    let set = "select current_setting('synchronous_standby_names')";
    eventually(pool, set, "nobody".to_owned()).await;

    let jobs = (0..3).map(|n| match group {
        Some(group) => job_of("q", group, n),
        None => NewJob::new("q", &n),
    });
    enqueue_aside(&database, jobs.collect()).await;
    let waits = "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where wait_event = 'SyncRep' and query ilike '%claim_jobs%'";
    eventually(pool, waits, 1_i64).await;
    let since = Instant::now();
    by_hand(pool, "alter system reset synchronous_standby_names").await;
    by_hand(pool, "select pg_reload_conf()").await;

    drained(pool, "q").await;
    let took = since.elapsed();
    println!("{group:?}: {took:.2?}");
    assert!(took < Duration::from_secs(15), "{group:?}: {took:?}");
    let mut ran = log.entries();
    ran.sort();
    assert_eq!(ran, ["0", "1", "2"], "{group:?}");
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_so_runs_soon_however_long_the_lease_is() {
    // A job without a group is its own lock. Side by side, because nearly all of their time is
    // waiting.
    tokio::join!(runs_soon(Some("g")), runs_soon(None));
}

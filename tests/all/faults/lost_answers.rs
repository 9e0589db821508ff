//! Claims that a living process does not know, so that no other process would free their groups:
//! the answer to a claim was lost, or no server was there for as long as an outcome is kept.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Hold, NewJob, Processor};
use sqlx::Executor;
use sqlx::postgres::PgPoolOptions;
use tokio::time::sleep;

use crate::support::proxy::Proxy;
use crate::support::{
    Errors, Log, by_hand, database, drained, ended, enqueue, eventually, handler_with, job_of,
    long, nothing_remains, processor, queue, sample, serve, started,
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

/// Its handler has a transaction when the server ends. It has the only slot, so that no claim
/// fails.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_recorded_runs_soon_however_long_the_lease_is() {
    if !long() {
        return;
    }
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let pool = database.pool();
    let (log, errors) = (Log::default(), Errors::default());
    let run = handler_with(log.clone(), async |log, job, _| {
        job.tx().await?;
        log.add(job.attempt().to_string());
        if job.attempt() == 1 {
            job.cancelled().await;
        }
        Ok(json!(null))
    });
    let options = queue("q").hold(Hold::Lease(LEASE)).concurrency(1);
    let builder = errors.of(processor(&database, 4).await).queue(options, run);
    let _running = started(builder).await;
    let present = "select count(*) from seriatim.processor where presence_key is not null";
    eventually(pool, present, 1_i64).await;
    let id = enqueue(pool, "q", "g", 1).await;
    log.wait_for(1).await;
    server.stop().await.unwrap();
    let given_up = |errors: &[String]| errors.iter().any(|error| error.starts_with("Settle"));
    errors.0.wait("its outcome is given up", given_up).await;
    server.start_again().await.unwrap();
    let since = Instant::now();
    assert_eq!(ended(pool, id).await.attempts, 2);
    println!("{:.2?} after the server was back", since.elapsed());
    nothing_remains(pool).await;
}

/// The row may be locked when the server is back, as for the extension of its lease: nothing is
/// given up then.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_whose_row_is_locked_is_not_given_up() {
    if !long() {
        return;
    }
    let database = database().await;
    let pool = database.pool();
    let (log, errors) = (Log::default(), Errors::default());
    let run = handler_with(log.clone(), async |log, job, _| {
        log.add(job.attempt().to_string());
        if job.attempt() == 1 {
            job.cancelled().await;
        }
        Ok(json!(null))
    });
    let proxy = Proxy::start(&database.url(), None).await;
    let through = proxy.pool(PgPoolOptions::new().max_connections(8)).await;
    let options = queue("q").hold(Hold::Lease(LEASE));
    let _running = started(errors.of(Processor::builder(through)).queue(options, run)).await;
    let present = "select count(*) from seriatim.processor where presence_key is not null";
    eventually(pool, present, 1_i64).await;
    let id = enqueue(pool, "q", "g", 1).await;
    log.wait_for(1).await;
    proxy.cut();
    let mut locker = database.connect().await.unwrap();
    locker.execute("begin; select from seriatim.queue_group for update").await.unwrap();
    errors.0.wait("the hold is lost", |e| e.iter().any(|e| e.starts_with("HoldLost"))).await;
    proxy.mend();
    // Without a server an outcome is given up after 15 s.
    sleep(Duration::from_secs(17)).await;
    locker.execute("rollback").await.unwrap();
    assert_eq!(ended(pool, id).await.attempts, 2);
    assert_eq!(errors.named("Settle"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_so_runs_soon_however_long_the_lease_is() {
    // A job without a group is its own lock. Side by side, because nearly all of their time is
    // waiting.
    join_all(sample([Some("g"), None]).into_iter().map(runs_soon)).await;
}

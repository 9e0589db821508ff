//! P10: a worker that lost its claim can neither settle the job nor commit through `job.tx()`.

use std::time::Duration;

use serde_json::json;
use seriatim::testing::TestDatabase;
use seriatim::{Client, Hold, JobStatus, Processor, Running};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::{HOLD, database, queue, worker};
use crate::support::proxy::Proxy;
use crate::support::worker_process::{WorkerProcess, announced, heard};
use crate::support::{
    Errors, Log, by_hand, ended, enqueue, eventually, handler_with, long, nothing_remains, value,
};

/// Writes through the job's transaction when the test lets it go on; the worker's name is what it
/// writes.
async fn stale_worker(act: &str) {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create table public.effect (pid int, attempt int); create table public.go_on ()",
    )
    .await;
    let settings = worker(database.url(), &["q"]);
    let log = Log::default();
    let stale = WorkerProcess::start("stale", &settings, &log);
    enqueue(pool, "q", "g", act).await;
    let next = enqueue(pool, "q", "g", "go on").await;
    let held = announced(&log, "g", 1).await;
    heard(&log, |said| said == "stale: waits").await;
    // A session's locks keep its claim, and under a lease also the presence of its process.
    let mut sessions = vec![held.pid];
    if HOLD != Hold::Transaction {
        let present = "select count(*) from seriatim.processor where presence_key is not null";
        eventually(pool, present, 1_i64).await;
        let presence = "select presence_pid from seriatim.processor where presence_key is not null";
        sessions.push(value(pool, presence).await);
    }

    // It neither sees that its session is gone, nor can it be dropped.
    stale.signal("STOP").await;
    let other = WorkerProcess::start("other", &settings, &log);
    other.is_ready(&log).await;
    for pid in sessions {
        assert!(value::<bool>(pool, format!("select pg_terminate_backend({pid})")).await);
    }
    let taken = announced(&log, "g", 2).await;
    assert_eq!((taken.worker.as_str(), taken.job), ("other", held.job));
    let by_the_other = ended(pool, held.job).await;
    assert_eq!(by_the_other.status, JobStatus::Succeeded, "{by_the_other:?}");
    ended(pool, next).await;

    by_hand(pool, "drop table public.go_on").await;
    stale.signal("CONT").await;
    // Whether it first misses its session or fails to use it, its settle is refused.
    heard(&log, |said| said.starts_with("stale: error: Settle")).await;

    let effects: Vec<i32> = value(pool, "select array_agg(attempt) from public.effect").await;
    assert_eq!(effects, [2]);
    assert_eq!(ended(pool, held.job).await, by_the_other, "it is not settled again");
    nothing_remains(pool).await;
    // It is stale no more.
    other.end().await;
    enqueue(pool, "q", "h", "go on").await;
    assert_eq!(announced(&log, "h", 1).await.worker, "stale");
    nothing_remains(pool).await;
    stale.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_writes_nothing_when_it_wakes_up() {
    stale_worker("wait, then write").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_commits_nothing_when_it_wakes_up() {
    stale_worker("write, then wait").await;
}

/// Its sessions live, so nothing but its own process would enforce its timeout. Maintenance of
/// another process does so, and the job runs elsewhere. 30 s are 1 s here.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_workers_run_is_ended_after_its_timeout() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create table public.effect (pid int, attempt int); create table public.go_on ()",
    )
    .await;
    for function in ["abort_silent_run", "processors"] {
        let definition = format!(
            "select replace(pg_get_functiondef('seriatim.{function}'::regproc), '30 s', '1 s')"
        );
        by_hand(pool, value::<String>(pool, definition).await).await;
    }
    let settings = worker(database.url(), &["q"]);
    let log = Log::default();
    let stale = WorkerProcess::start("stale", &settings, &log);
    enqueue(pool, "q", "g", "write, then wait").await;
    let held = announced(&log, "g", 1).await;
    heard(&log, |said| said == "stale: waits").await;
    let presence = "select count(*) from seriatim.processor where presence_key is not null";
    eventually(pool, presence, 1_i64).await;
    by_hand(pool, "update seriatim.processor set timeouts_ms = array[1]").await;

    stale.signal("STOP").await;
    eventually(pool, "select silent from seriatim.processors()", true).await;
    let explained = Client::default().explain_job(pool, held.job).await.unwrap().unwrap();
    let explained = explained.to_string();
    assert!(explained.contains("last seen at") && explained.contains("no timeout"), "{explained}");
    let other = WorkerProcess::start("other", &settings, &log);
    other.is_ready(&log).await;
    // It looks at two rounds of maintenance, 10 s apart.
    let aborts = "select count(*) from seriatim.operation where action = 'abort'";
    eventually(pool, aborts, 1_i64).await;
    let taken = announced(&log, "g", 2).await;
    assert_eq!((taken.worker.as_str(), taken.job), ("other", held.job));
    assert_eq!(ended(pool, held.job).await.status, JobStatus::Succeeded);
    let done = "select concat_ws(' ', actor, action, job_id) from seriatim.operation";
    assert_eq!(value::<String>(pool, done).await, format!("maintenance abort {}", held.job));

    by_hand(pool, "drop table public.go_on").await;
    stale.signal("CONT").await;
    heard(&log, |said| said.starts_with("stale: error: Settle")).await;
    let effects: Vec<i32> = value(pool, "select array_agg(attempt) from public.effect").await;
    assert_eq!(effects, [2]);
    nothing_remains(pool).await;
    other.end().await;
    stale.end().await;
}

/// A processor that logs what it runs.
fn logging(pool: PgPool, name: &'static str, log: &Log, errors: &Errors) -> Running {
    errors
        .of(Processor::builder(pool))
        .listen(false)
        .maintenance_interval(None)
        .queue(
            queue("q"),
            handler_with((log.clone(), name), async |(log, name), job, _| {
                // Under a lease this is what takes the locks.
                job.tx().await?;
                log.add(format!("{name} {}", job.attempt()));
                Ok(json!(name))
            }),
        )
        .build()
        .unwrap()
        .start_when_ready()
}

/// A processor whose claim of the one job is committed and whose hold is on its way; what it logs
/// and reports.
async fn late_hold(database: &TestDatabase, group: Option<&str>) -> (Proxy, Running, Log, Errors) {
    let (log, errors) = (Log::default(), Errors::default());
    // A part of the message that begins a hold, and of no claim.
    let proxy = Proxy::start(&database.url(), Some("hold_job")).await;
    let pool = proxy.pool(PgPoolOptions::new().max_connections(4)).await;
    let late = logging(pool, "late", &log, &errors);
    let job = seriatim::NewJob::new("q", &1);
    let job = match group {
        Some(group) => job.group(group),
        None => job,
    };
    seriatim::enqueue(database.pool(), job).await.unwrap();
    proxy.is_cut().await;
    (proxy, late, log, errors)
}

async fn is_refused(proxy: Proxy, late: Running, errors: Errors) {
    proxy.mend();
    // Under a lease the handler has begun, and its failure is refused.
    let refused = if HOLD == Hold::Transaction { "Hold:" } else { "Settle:" };
    let refused = |errors: &[String]| errors.iter().any(|error| error.starts_with(refused));
    errors.0.wait("the hold is refused", refused).await;
    let report = late.shutdown(Duration::from_secs(5)).await;
    assert_eq!((report.finished, report.still_running), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_taken_over_before_its_hold_starts_no_handler() {
    if HOLD != Hold::Transaction {
        // A lease begins with its claim.
        return;
    }
    let taken_over = async |group| {
        let database = database().await;
        let (proxy, late, log, errors) = late_hold(&database, group).await;
        let pool = PgPoolOptions::new().max_connections(4);
        let pool = database.pool_with(pool).await.unwrap();
        let prompt = logging(pool, "prompt", &log, &Errors::default());
        assert_eq!(log.wait_for(1).await, ["prompt 2"]);
        nothing_remains(database.pool()).await;
        is_refused(proxy, late, errors).await;
        assert_eq!(log.entries(), ["prompt 2"]);
        prompt.shutdown(Duration::from_secs(5)).await;
    };
    tokio::join!(taken_over(Some("g")), taken_over(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_needs_the_token_of_its_claim() {
    let other_token = async |group, table: &str, lease: &str| {
        let database = database().await;
        let (proxy, late, log, errors) = late_hold(&database, group).await;
        // At once, while the late hold still tries.
        let claim = format!(
            "update seriatim.{table} set claim = gen_random_uuid(), {lease} = now() + interval '1 h'"
        );
        by_hand(database.pool(), claim).await;
        is_refused(proxy, late, errors).await;
        assert_eq!(log.entries(), [""; 0]);
    };
    tokio::join!(
        other_token(Some("g"), "queue_group", "ready_at"),
        other_token(None, "job", "lease_until"),
    );
}

/// The request is on its way and the connection stands, but no answer ever comes: nothing else
/// would notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_never_answered_is_given_up() {
    if HOLD != Hold::Transaction {
        // The presence is not answered either, and its process stops the handler: see P6.
        return;
    }
    // An answer is waited for as long as the library does: 5 s, and then some for the take-over.
    if !long() {
        return;
    }
    let database = database().await;
    let (proxy, late, log, errors) = late_hold(&database, Some("g")).await;
    let given_up = |errors: &[String]| errors.iter().any(|error| error.starts_with("Hold:"));
    errors.0.wait("the hold is given up", given_up).await;
    proxy.mend();
    assert_eq!(log.wait_for(1).await, ["late 2"]);
    nothing_remains(database.pool()).await;
    late.shutdown(Duration::from_secs(5)).await;
}

//! Cancelling: a job that waits will not run. One that runs is asked to stop, and decides.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::Cancelled;
use seriatim::testing::TestDatabase;
use seriatim::{ActiveJob, Client, FailureKind, JobError, JobStatus, NewJob, ProcessorBuilder};
use sqlx::PgPool;

use crate::support::{
    Log, database, ended, eventually, handler_with, job, job_of, nothing_remains, processor, queue,
    started, until_groups,
};

async fn act(job: &mut ActiveJob, data: Value, log: Log) -> Result<Value, JobError> {
    let what = data.as_str().unwrap_or_default();
    log.add(format!("{what} started"));
    if what == "quick" {
        return Ok(data);
    }
    assert!(!job.is_cancelled());
    sqlx::query("select 1").execute(job.tx().await?).await?;
    job.cancelled().await;
    assert!(job.is_cancelled());
    log.add(format!("{what} told"));
    match what {
        "err" => Err(JobError::retry("stopped half-way")),
        "panic" => panic!("stopped in panic"),
        "finishes" => Ok(json!("done all the same")),
        _ => std::future::pending().await,
    }
}

async fn bench(database: &TestDatabase, log: &Log) -> ProcessorBuilder {
    processor(database, 10).await.queue(
        queue("q"),
        handler_with(log.clone(), async |log, job, data| act(job, data, log.clone()).await),
    )
}

async fn put(pool: &PgPool, job: NewJob) -> i64 {
    seriatim::enqueue(pool, job).await.unwrap().id()
}

async fn logged(log: &Log, what: &str) {
    let entry = format!("{what} started");
    log.wait(&entry, |entries| entries.contains(&entry)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_never_runs() {
    let database = database().await;
    let (pool, log, client) = (database.pool(), Log::default(), Client::default());
    let _running = started(bench(&database, &log).await).await;

    // Behind a running one.
    let first = put(pool, job_of("q", "g", "finishes")).await;
    logged(&log, "finishes").await;
    let waits = put(pool, job_of("q", "g", "never")).await;
    let last = put(pool, job_of("q", "g", "quick")).await;
    // A worker may read its row for a moment. Then the cancel is a request.
    client.cancel(pool, waits).await.unwrap();
    let cancelled = ended(pool, waits).await;
    assert_eq!((cancelled.status, cancelled.attempts), (JobStatus::Cancelled, 0));
    assert_eq!(client.cancel(pool, first).await.unwrap(), Cancelled::Requested);
    assert_eq!(ended(pool, last).await.status, JobStatus::Succeeded);

    // The delayed head of a group that sleeps: what is behind it is woken.
    let hour = Duration::from_hours(1);
    let head = put(pool, job_of("q", "h", "never").delay(hour)).await;
    let behind = put(pool, job_of("q", "h", "quick")).await;
    until_groups(pool, "ready_at > now() + interval '1 min'", 1).await;
    client.cancel(pool, head).await.unwrap();
    ended(pool, behind).await;

    // Its whole group, and one without a group.
    let alone = put(pool, job_of("q", "i", "never").delay(hour)).await;
    let ungrouped = put(pool, NewJob::new("q", "never").delay(hour)).await;
    for id in [alone, ungrouped] {
        client.cancel(pool, id).await.unwrap();
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Cancelled, 0));
        assert!(job.finished_at.is_some() && job.error.is_none());
    }
    nothing_remains(pool).await;
    assert!(!log.entries().contains(&"never started".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_told_and_decides() {
    let database = database().await;
    let (pool, log, client) = (database.pool(), Log::default(), Client::default());
    let _running = started(bench(&database, &log).await).await;
    let mut ids = Vec::new();
    for what in ["err", "panic", "finishes", "hangs"] {
        let job = job_of("q", what, what).max_attempts(3);
        let limit = Duration::from_secs(if what == "hangs" { 4 } else { 60 });
        ids.push(put(pool, job.timeout(limit)).await);
        put(pool, job_of("q", what, "quick")).await;
    }
    for what in ["err", "panic", "finishes", "hangs"] {
        logged(&log, what).await;
    }
    for id in &ids {
        let cancelled = client.cancel(pool, *id).await.unwrap();
        assert_eq!(cancelled, Cancelled::Requested);
    }
    for (id, status) in ids.into_iter().zip([
        JobStatus::Cancelled,
        JobStatus::Cancelled,
        JobStatus::Succeeded,
        JobStatus::Cancelled,
    ]) {
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts), (status, 1), "{job:?}");
        if status == JobStatus::Cancelled {
            assert_eq!(job.history[0].kind, FailureKind::Cancelled);
        } else {
            assert_eq!(job.result, Some(json!("done all the same")));
        }
    }
    // The jobs behind them ran, no request is left, and no other handler was asked to stop.
    nothing_remains(pool).await;
    eventually(pool, "select count(*) from seriatim.cancel_request", 0_i64).await;
    let told = log.entries();
    assert_eq!(told.iter().filter(|e| e.ends_with("told")).count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_a_transaction_counts_when_it_commits() {
    let database = database().await;
    let (pool, log, client) = (database.pool(), Log::default(), Client::default());
    let kept = put(pool, job_of("q", "g", "quick")).await;
    let gone = put(pool, job_of("q", "h", "never")).await;
    let (mut one, mut other) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    for (tx, id) in [(&mut one, kept), (&mut other, gone)] {
        let cancelled = client.cancel(&mut **tx, id).await.unwrap();
        assert_eq!(cancelled, Cancelled::Now, "no worker is there yet");
        assert_eq!(job(&mut **tx, id).await.status, JobStatus::Cancelled);
    }
    let _running = started(bench(&database, &log).await).await;
    // Their groups wait, other groups do not.
    let free = put(pool, job_of("q", "i", "quick")).await;
    ended(pool, free).await;
    assert_eq!(log.entries(), ["quick started"]);
    one.rollback().await.unwrap();
    other.commit().await.unwrap();
    assert_eq!(ended(pool, kept).await.status, JobStatus::Succeeded);
    assert_eq!(ended(pool, gone).await.status, JobStatus::Cancelled);
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_about_a_locked_row_is_carried_out_later() {
    let database = database().await;
    let (pool, log, client) = (database.pool(), Log::default(), Client::default());
    let _running = started(bench(&database, &log).await).await;
    let hour = Duration::from_hours(1);
    let ids = [
        put(pool, job_of("q", "g", "never").delay(hour)).await,
        put(pool, NewJob::new("q", "never").delay(hour)).await,
    ];
    let mut other = pool.begin().await.unwrap();
    sqlx::query("select 1 from seriatim.job where id = any($1) for update")
        .bind(ids)
        .execute(&mut *other)
        .await
        .unwrap();
    for id in ids {
        let cancelled = client.cancel(pool, id).await.unwrap();
        assert_eq!(cancelled, Cancelled::Requested);
    }
    other.rollback().await.unwrap();
    for id in ids {
        assert_eq!(ended(pool, id).await.status, JobStatus::Cancelled);
    }
    nothing_remains(pool).await;
    eventually(pool, "select count(*) from seriatim.cancel_request", 0_i64).await;
}

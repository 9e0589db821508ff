//! P9: an attempt is committed before its handler starts, so a job that takes its worker or its
//! database down runs out of attempts like any other.

use std::time::Duration;

use serde_json::json;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Client, FailureKind, Job, JobStatus, RetryPolicy};
use sqlx::PgPool;

use super::{database, queue, worker};
use crate::support::worker_process::{Settings, WorkerProcess, announced};
use crate::support::{
    Log, drained, ended, enqueue, handler_with, job_when, nothing_remains_for_the_next, operator,
    serve, size, until_groups, value,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_committed_before_its_handler_starts() {
    let database = database().await;
    let outside = database.pool().clone();
    let log = Log::default();
    let _running = serve(&database, 10,
            queue("q"),
            handler_with((log.clone(), outside), async |(log, outside), job, _| {
                let id = job.id();
                // As another session sees it, without waiting for the lock of this one. A job with
                // a group is not written at its start: its group's row says it.
                let row = format!(
                    "select concat_ws(' ', case when g.started_at is null then j.status else 'started' end,
                           j.attempts + (g.started_at is not null)::integer,
                           coalesce(g.started_at, j.last_started_at) <= clock_timestamp())
                         from seriatim.job j left join seriatim.queue_group g
                           on (g.queue, g.group_id, g.job_id) = (j.queue, j.group_id, j.id)
                         where j.id = {id}"
                );
                log.add(value::<String>(&outside, row).await);
                if job.attempt() < 3 {
                    Err("not yet".parse::<u32>().unwrap_err())?;
                }
                Ok(json!(null))
            })).await;
    for group in [Some("g"), None] {
        let new = seriatim::NewJob::new("q", &1);
        let new = match group {
            Some(group) => new.group(group),
            None => new,
        };
        let id = seriatim::enqueue(database.pool(), new).await.unwrap().id();
        let job = ended(database.pool(), id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 3));
    }
    let once = ["started 1 t", "started 2 t", "started 3 t"];
    assert_eq!(log.entries(), [once, once].concat());
}

/// Runs workers, one at a time, until one outlives the job. Returns how many died.
async fn workers_die_of(pool: &PgPool, job: i64, settings: &Settings, log: &Log) -> u32 {
    for died in 0.. {
        let name = format!("worker {died}");
        let mut worker = WorkerProcess::start(name, settings, log);
        tokio::select! {
            _ = worker.ended() => {}
            _ = ended(pool, job) => {
                worker.end().await;
                return died;
            }
        }
    }
    unreachable!("the job ends or its worker does")
}

fn lost_attempts(job: &Job, expected: u32) {
    assert_eq!((job.status, job.attempts), (JobStatus::Failed, expected));
    let failure = job.error.as_ref().unwrap();
    assert_eq!((failure.kind, failure.attempt), (FailureKind::WorkerLost, expected));
    let history: Vec<_> = job.history.iter().map(|entry| (entry.attempt, entry.kind)).collect();
    let each: Vec<_> = (1..=expected).map(|n| (n, FailureKind::WorkerLost)).collect();
    assert_eq!(history, each);
    for entry in &job.history {
        assert!(entry.started_at.unwrap() < entry.finished_at, "{entry:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_process_runs_out_of_attempts() {
    let database = database().await;
    let pool = database.pool();
    let mut settings = worker(database.url(), &["q"]);
    settings.attempts = 2;
    let log = Log::default();
    let deadly = enqueue(pool, "q", "g", "always abort").await;
    let next = enqueue(pool, "q", "g", "go on").await;
    let ungrouped = seriatim::NewJob::new("ungrouped", &"always abort");
    let ungrouped = seriatim::enqueue(pool, ungrouped).await.unwrap().id();

    let with_a_group = async {
        assert_eq!(workers_die_of(pool, deadly, &settings, &log).await, 2);
        lost_attempts(&ended(pool, deadly).await, 2);
        // The worker that survived may have been told to end before it came to the next job.
        assert_eq!(workers_die_of(pool, next, &settings, &log).await, 0);
        let next = ended(pool, next).await;
        assert_eq!((next.status, next.attempts), (JobStatus::Succeeded, 1));
    };
    // One without a group is no exception.
    let without_one = async {
        let settings = Settings { queues: vec!["ungrouped".to_owned()], ..settings.clone() };
        assert_eq!(workers_die_of(pool, ungrouped, &settings, &log).await, 2);
        lost_attempts(&ended(pool, ungrouped).await, 2);
    };
    tokio::join!(with_a_group, without_one);
    nothing_remains_for_the_next(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_process_can_halt_its_group() {
    let database = database().await;
    let pool = database.pool();
    let mut settings = worker(database.url(), &["q"]);
    settings.attempts = 1;
    settings.halt = true;
    let log = Log::default();
    let deadly = enqueue(pool, "q", "g", "always abort").await;
    let next = enqueue(pool, "q", "g", "go on").await;

    assert_eq!(workers_die_of(pool, deadly, &settings, &log).await, 1);
    lost_attempts(&ended(pool, deadly).await, 1);
    let client = Client::default();
    let halted = client.halted_groups(pool, "q").await.unwrap();
    assert_eq!(halted.len(), 1);
    assert_eq!((halted[0].group.as_str(), halted[0].job), ("g", Some(deadly)));

    // Another group's job, enqueued later, runs; the halted group's does not.
    let other = enqueue(pool, "q", "other", "go on").await;
    assert_eq!(workers_die_of(pool, other, &settings, &log).await, 0);
    let waits = job_when(pool, next, |_| true).await;
    assert_eq!((waits.status, waits.attempts), (JobStatus::Queued, 0));
    operator().unhalt_group(pool, "q", "g").await.unwrap();
    assert_eq!(workers_die_of(pool, next, &settings, &log).await, 0);
    assert_eq!(announced(&log, "g", 1).await.job, deadly);
    nothing_remains_for_the_next(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_crashes_the_server_runs_out_of_attempts() {
    // A host that does not mind to lose its last transactions: attempts must be counted all the
    // same.
    let server = Server::builder().setting("synchronous_commit", "off");
    let server = server.start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let pool = database.pool();
    // Before the claim, whose flush covers them.
    let deadly = enqueue(pool, "q", "g", "deadly").await;
    let next = enqueue(pool, "q", "g", "harmless").await;
    let log = Log::default();
    let attempts = size(2, 3);
    let retry = RetryPolicy::new(attempts).base(Duration::from_millis(10));
    let _running = serve(
        &database,
        10,
        queue("q").retry(retry),
        handler_with(log.clone(), async |log, job, data| {
            if data == json!("deadly") {
                // Under a lease, a handler without a transaction outlives the server.
                job.tx().await?;
                log.add(format!("in {}", job.attempt()));
                std::future::pending::<()>().await;
            }
            Ok(json!(null))
        }),
    )
    .await;
    let numbers: Vec<u32> = (1..=attempts).collect();
    for (before, attempt) in numbers.iter().enumerate() {
        let entries = log.wait_for(before + 1).await;
        assert_eq!(entries[before], format!("in {attempt}"), "each number once");
        server.stop_immediately().await.unwrap();
        server.start_again().await.unwrap();
    }
    drained(pool, "q").await;
    let deadly = ended(pool, deadly).await;
    assert_eq!((deadly.status, deadly.attempts), (JobStatus::Failed, attempts));
    let kinds = [FailureKind::ConnectionLost, FailureKind::WorkerLost];
    let recorded: Vec<u32> = deadly.history.iter().map(|entry| entry.attempt).collect();
    assert_eq!(recorded, numbers);
    assert!(deadly.history.iter().all(|entry| kinds.contains(&entry.kind)), "{deadly:?}");
    assert_eq!(ended(pool, next).await.status, JobStatus::Succeeded);
    assert_eq!(log.entries().len(), numbers.len(), "it did not run again");
    until_groups(pool, "true", 0).await;
}

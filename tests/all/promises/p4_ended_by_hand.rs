//! P4, P2: a handler that ends its job's transaction by hand has failed for good. Its committed
//! writes stay, so no other attempt may write them again.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, FailureKind, Job, JobError, JobStatus, NewJob, OutOfAttempts, Processor,
    QueueOptions,
};
use sqlx::{AssertSqlSafe, PgPool};

use super::{database, queue};
use crate::support::{
    FnHandler, Log, by_hand, ended, handler_with, job_of, jobs_where, nothing_remains, operator,
    processor, serve, started, value,
};

/// Notes the end of a handler, also of one that is dropped.
struct Noted(Log, String);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.add(format!("end {}", self.1));
    }
}

/// Writes, sends the first part of the data, and goes on as the second part says.
async fn act(log: Log, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    let what = data.as_str().unwrap().to_owned();
    log.add(format!("begin {what}"));
    let _noted = Noted(log, what.clone());
    let Some((sql, then)) = what.split_once(": ") else {
        return Ok(json!("nothing"));
    };
    let tx = job.tx().await?;
    sqlx::query("insert into public.written values ('within')").execute(&mut *tx).await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *tx).await?;
    sqlx::query("insert into public.written values ('behind')").execute(tx).await?;
    match then {
        "ok" => Ok(json!("done")),
        "error" => Err(JobError::retry("as asked")),
        "panic" => panic!("as asked"),
        _ => std::future::pending().await,
    }
}

async fn with_table() -> TestDatabase {
    let database = database().await;
    by_hand(database.pool(), "create table public.written (what text)").await;
    database
}

fn acts(log: &Log) -> FnHandler {
    handler_with(log.clone(), async |log, job, data| act(log, job, data).await)
}

async fn written(pool: &PgPool) -> (i64, i64) {
    let count = |what| format!("select count(*) from public.written where what = '{what}'");
    (value(pool, count("within")).await, value(pool, count("behind")).await)
}

fn assert_ended_by_hand(what: &str, job: &Job) {
    assert_eq!((job.status, job.attempts), (JobStatus::Failed, 1), "{what}: {job:?}");
    let failure = job.error.as_ref().unwrap();
    assert_eq!(failure.kind, FailureKind::TransactionEnded, "{what}: {failure:?}");
    for part in ["the handler ended the job's transaction", "savepoint", "connection of its own"] {
        assert!(failure.message.contains(part), "{what}: {failure:?}");
    }
    assert_eq!(job.history.len(), 1, "{what}");
}

/// Runs a job, behind which another one of its group waits, which must run too.
async fn run(pool: &PgPool, what: &str) -> Job {
    let jobs = [job_of("q", what, what), job_of("q", what, "behind")];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let job = ended(pool, jobs[0].id()).await;
    assert_eq!(ended(pool, jobs[1].id()).await.status, JobStatus::Succeeded, "behind {what}");
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_ended_by_hand_is_a_dead_letter_at_once() {
    let database = with_table().await;
    let (pool, log) = (database.pool(), Log::default());
    let _running = serve(&database, 10, queue("q"), acts(&log)).await;
    for (sql, within, behind) in [
        ("commit", 1, 1),
        ("rollback", 0, 1),
        ("commit; begin", 1, 0),
        ("commit and chain", 1, 0),
        ("rollback and chain", 0, 0),
        ("commit; begin; savepoint mine", 1, 0),
    ] {
        for then in ["ok", "error", "panic"] {
            let what = format!("{sql}: {then}");
            assert_ended_by_hand(&what, &run(pool, &what).await);
            assert_eq!(written(pool).await, (within, behind), "{what}");
            by_hand(pool, "truncate public.written").await;
        }
    }
    let ungrouped = NewJob::new("q", &"commit: hang");
    let id = seriatim::enqueue(pool, ungrouped).await.unwrap().id();
    assert_ended_by_hand("ungrouped", &ended(pool, id).await);
    nothing_remains(pool).await;
}

/// Its locks are gone, and another worker would begin the job beside it two seconds later.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_goes_on_after_its_commit_is_stopped() {
    let database = with_table().await;
    let (pool, log) = (database.pool(), Log::default());
    let mut running = Vec::new();
    for _ in 0..2 {
        let builder = processor(&database, 10).await.queue(queue("q"), acts(&log));
        running.push(started(builder).await);
    }
    for sql in ["commit", "rollback", "commit; begin"] {
        let what = format!("{sql}: hang");
        let before = log.entries().len();
        assert_ended_by_hand(&what, &run(pool, &what).await);
        let entries = log.wait_for(before + 4).await;
        let expected = ["begin ", "end "].map(|of| format!("{of}{what}"));
        assert_eq!(entries[before..before + 2], expected);
        assert_eq!(entries[before + 2..], ["begin behind", "end behind"]);
    }
    nothing_remains(pool).await;
}

/// Neither of them counts against a job, or gives it another attempt.
#[tokio::test(flavor = "multi_thread")]
async fn neither_a_timeout_nor_a_shutdown_repeats_a_commit() {
    let database = with_table().await;
    let (pool, log) = (database.pool(), Log::default());
    // Time enough to send all that the handler sends, also on a busy machine.
    let options = || queue("q").timeout(Duration::from_secs(2));
    let running = serve(&database, 10, options(), acts(&log)).await;
    for sql in ["commit", "commit; begin"] {
        let what = format!("{sql}: hang");
        assert_ended_by_hand(&what, &run(pool, &what).await);
    }
    running.shutdown(Duration::from_secs(5)).await;

    let running = serve(&database, 10, queue("q"), acts(&log)).await;
    let before = log.entries().len();
    let job = job_of("q", "g", "commit: hang");
    let id = seriatim::enqueue(pool, job).await.unwrap().id();
    log.wait_for(before + 1).await;
    let behind = "select count(*) from public.written where what = 'behind'";
    crate::support::eventually(pool, behind, 2_i64).await;
    running.shutdown(Duration::ZERO).await;
    assert_ended_by_hand("a shutdown", &ended(pool, id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn its_group_halts_or_parks_as_behind_any_dead_letter() {
    let database = with_table().await;
    let (pool, log) = (database.pool(), Log::default());
    let of = |name: &str, then| -> QueueOptions { queue(name).out_of_attempts(then) };
    let pool_of_processor = database.pool_with(sqlx::postgres::PgPoolOptions::new());
    let _running = started(
        Processor::builder(pool_of_processor.await.unwrap())
            .queue(of("halts", OutOfAttempts::Halt), acts(&log))
            .queue(of("parks", OutOfAttempts::Park), acts(&log)),
    )
    .await;
    for (name, status) in [("halts", "queued"), ("parks", "parked")] {
        let jobs = [job_of(name, "g", "commit: ok"), job_of(name, "g", "behind")];
        let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
        assert_ended_by_hand(name, &ended(pool, jobs[0].id()).await);
        let behind = format!("queue = '{name}' and status = '{status}'");
        assert_eq!(jobs_where(pool, &behind).await, 1, "{name}");
    }
    operator().unhalt_group(pool, "halts", "g").await.unwrap();
}

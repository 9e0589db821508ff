//! Jobs that put themselves off: by an error that is none, or with what they wrote.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::observe::{EndedAs, Event};
use seriatim::receive::{Receive, ReceiveError};
use seriatim::{ActiveJob, Client, FailureKind, Hold, JobError, JobStatus};
use sqlx::PgPool;
use sqlx::error::DatabaseError;
use tokio::sync::mpsc;

use crate::support::{
    Log, by_hand, database, drained, ended, enqueue, handler, handler_with, job, job_of, job_when,
    operator, processor, queue, sample, serve, size, started, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];
const SOON: Duration = Duration::from_millis(5);

async fn prepare(pool: &PgPool) {
    by_hand(pool, "create table public.step (job bigint, number integer, place bigserial)").await;
}

async fn write(job: &mut ActiveJob) -> Result<(), JobError> {
    let (id, number) = (job.id(), i32::try_from(job.snoozes()).unwrap());
    let insert = sqlx::query("insert into public.step values ($1, $2)").bind(id).bind(number);
    insert.execute(job.tx().await?).await?;
    Ok(())
}

async fn steps(pool: &PgPool) -> Vec<i32> {
    value(pool, "select coalesce(array_agg(number order by number), '{}') from public.step").await
}

/// Puts the job off until it was put off as often as its data says, and writes before that if it
/// says so.
async fn wait(log: Log, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    log.add(format!("{} {}", job.id(), job.snoozes()));
    if data["writes"] == true {
        write(job).await?;
    }
    if u64::from(job.snoozes()) < data["times"].as_u64().unwrap_or_default() {
        return Err(JobError::snooze(SOON));
    }
    Ok(Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snoozed_job_keeps_its_place_and_its_attempts() {
    for hold in sample(HOLDS) {
        for writes in [false, true] {
            let (database, log) = (database().await, Log::default());
            let pool = database.pool();
            prepare(pool).await;
            let first = job_of("q", "g", json!({ "times": 3, "writes": writes })).max_attempts(1);
            let first = seriatim::enqueue(pool, first).await.unwrap().id();
            let second = enqueue(pool, "q", "g", json!({ "writes": writes })).await;
            let plain = seriatim::NewJob::new("q", &json!({ "times": 2, "writes": writes }));
            let plain = seriatim::enqueue(pool, plain).await.unwrap().id();
            let run = handler_with(log.clone(), wait);
            let _running = serve(&database, 10, queue("q").hold(hold), run).await;
            for (id, snoozes) in [(first, 3), (second, 0), (plain, 2)] {
                let job = ended(pool, id).await;
                assert_eq!(job.status, JobStatus::Succeeded, "{hold:?} {job:?}");
                assert_eq!(
                    (job.snoozes, job.attempts, job.attempts_forgiven),
                    (snoozes, snoozes + 1, snoozes)
                );
                assert!(job.error.is_none() && job.history.is_empty(), "{job:?}");
            }
            let ran =
                log.entries().into_iter().filter(|entry| !entry.starts_with(&plain.to_string()));
            let expected = [(first, 0), (first, 1), (first, 2), (first, 3), (second, 0)];
            let expected = expected.map(|(id, snoozes)| format!("{id} {snoozes}"));
            assert_eq!(ran.collect::<Vec<_>>(), expected, "{hold:?}");
            // The writes of a snoozed run are gone.
            assert_eq!(steps(pool).await, if writes { vec![0, 2, 3] } else { vec![] });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_again_keeps_what_it_wrote() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        prepare(pool).await;
        let first = enqueue(pool, "q", "g", 3).await;
        let second = enqueue(pool, "q", "g", 0).await;
        let run = handler(async |job, data| {
            write(job).await?;
            job.enqueue(job_of("other", "g", job.snoozes())).await.map_err(JobError::retry)?;
            if u64::from(job.snoozes()) < data.as_u64().unwrap() {
                job.again_after(SOON);
            }
            Ok(json!("done"))
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        for (id, snoozes) in [(first, 3), (second, 0)] {
            let job = ended(pool, id).await;
            assert_eq!((job.status, job.snoozes), (JobStatus::Succeeded, snoozes), "{hold:?}");
            assert_eq!(job.result, Some(json!("done")));
        }
        assert_eq!(steps(pool).await, [0, 0, 1, 2, 3]);
        let order =
            value::<Vec<i64>>(pool, "select array_agg(job order by place) from public.step");
        assert_eq!(order.await, [first, first, first, first, second], "{hold:?}");
        let enqueued =
            "select array_agg(data::text order by id) from seriatim.job where queue = 'other'";
        assert_eq!(value::<Vec<String>>(pool, enqueued).await, ["0", "1", "2", "3", "0"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_job_runs_again_without_a_transaction() {
    let (database, log) = (database().await, Log::default());
    let id = enqueue(database.pool(), "q", "g", 2).await;
    let run = handler_with(log.clone(), async |log, job, data| {
        log.add(job.snoozes().to_string());
        if u64::from(job.snoozes()) < data.as_u64().unwrap() {
            job.again_after(Duration::ZERO);
        }
        Ok(data)
    });
    let _running = serve(&database, 10, queue("q").hold(HOLDS[1]), run).await;
    assert_eq!(ended(database.pool(), id).await.snoozes, 2);
    assert_eq!(log.entries(), ["0", "1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_snoozes_are_a_failure() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        prepare(pool).await;
        let kinds = ["snooze", "again"];
        let jobs = kinds.map(|kind| job_of("q", kind, kind).max_attempts(1));
        let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
        let run = handler(async |job, data| {
            write(job).await?;
            if data == "snooze" {
                return Err(JobError::snooze(SOON));
            }
            job.again_after(SOON);
            Ok(Value::Null)
        });
        let options = queue("q").hold(hold).max_snoozes(2);
        let _running = serve(&database, 10, options, run).await;
        for each in &jobs {
            let failed = ended(pool, each.id()).await;
            assert_eq!((failed.status, failed.snoozes), (JobStatus::Failed, 2), "{hold:?}");
            let error = failed.error.unwrap();
            assert_eq!((error.kind, error.attempt), (FailureKind::Error, 3));
            let words = "it was snoozed 2 times, as often as it may be, and is not ready";
            assert_eq!(error.message, words);
        }
        assert_eq!(steps(pool).await, [0, 1]);
        // An operator's retry counts anew.
        let again = jobs[1].id();
        operator().retry(pool, again).await.unwrap();
        let failed = job_when(pool, again, |job| job.history.len() == 2).await;
        assert_eq!((failed.snoozes, failed.attempts), (2, 6));
        assert_eq!(steps(pool).await, [0, 0, 1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_counts_when_the_job_comes_again() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        prepare(pool).await;
        let id = enqueue(pool, "q", "g", 0).await;
        let run = handler_with(log.clone(), async |log, job, _| {
            write(job).await?;
            log.add("began");
            job.cancelled().await;
            job.again_after(SOON);
            Ok(Value::Null)
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        log.wait_for(1).await;
        operator().cancel(pool, id).await.unwrap();
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.snoozes), (JobStatus::Cancelled, 1), "{hold:?}");
        assert_eq!(steps(pool).await, [0]);
        assert_eq!(log.entries(), ["began"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_commit_has_failed_and_is_not_snoozed() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        prepare(pool).await;
        by_hand(pool, "create table public.known (number integer primary key)").await;
        by_hand(
            pool,
            "alter table public.step add foreign key (number) references public.known \
             deferrable initially deferred",
        )
        .await;
        let data = ["refused", "killed"].map(|data| job_of("q", data, data).max_attempts(1));
        let jobs = seriatim::enqueue_many(pool, data).await.unwrap();
        let run = handler(async |job, data| {
            if data == "refused" {
                write(job).await?;
            } else {
                sqlx::query("create table public.gone ()").execute(job.tx().await?).await?;
                job.again_after(SOON);
                // The server ends the session of this very transaction.
                let end = sqlx::query("select pg_terminate_backend(pg_backend_pid())");
                let _ = end.execute(job.tx().await?).await;
            }
            job.again_after(SOON);
            Ok(Value::Null)
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        let kinds = [FailureKind::Commit, FailureKind::ConnectionLost];
        for (each, kind) in jobs.iter().zip(kinds) {
            let job = ended(pool, each.id()).await;
            assert_eq!((job.status, job.snoozes, job.attempts), (JobStatus::Failed, 0, 1));
            assert_eq!(job.error.unwrap().kind, kind, "{hold:?}");
        }
        assert_eq!(steps(pool).await, [0; 0]);
        assert_eq!(
            value::<Option<String>>(pool, "select to_regclass('public.gone')::text").await,
            None
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_expires_while_it_is_snoozed_ends() {
    let (database, log) = (database().await, Log::default());
    let pool = database.pool();
    let run = handler_with(log.clone(), async |log, _, _| {
        log.add("ran");
        Err(JobError::snooze(Duration::from_hours(1)))
    });
    let _running = serve(&database, 10, queue("q"), run).await;
    let short = job_of("q", "g", 0).time_to_live(Duration::from_secs(size(4, 7)));
    let short = seriatim::enqueue(pool, short).await.unwrap().id();
    let job = ended(pool, short).await;
    assert_eq!((job.status, job.snoozes), (JobStatus::Failed, 1));
    assert_eq!(job.error.unwrap().kind, FailureKind::Expired);
    assert_eq!(log.entries(), ["ran"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_is_told_as_one() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let (sender, mut events) = mpsc::unbounded_channel();
        let hook = move |event: &Event| sender.send(event.clone()).unwrap();
        let run = handler(async |job, _| {
            match job.snoozes() {
                0 => return Err(JobError::snooze(SOON)),
                1 => job.again_after(Duration::from_hours(1)),
                _ if job.attempt() == 3 => return Err(JobError::retry_after("no", SOON * 1000)),
                _ => return Err(JobError::snooze(Duration::from_mins(1))),
            }
            Ok(Value::Null)
        });
        let builder = processor(&database, 10).await.on_event(hook);
        let _running = started(builder.queue(queue("q").hold(hold), run)).await;
        let id = enqueue(pool, "q", "g", 0).await;
        for (attempt, delay) in [(1, SOON), (2, Duration::from_hours(1))] {
            let event = events.recv().await.unwrap();
            assert_eq!((event.outcome, event.attempt), (EndedAs::Snoozed, attempt), "{hold:?}");
            assert_eq!((event.retry_in, event.failure), (Some(delay), None));
        }
        let client = Client::default();
        let says = async || client.explain_job(pool, id).await.unwrap().unwrap().to_string();
        let told = says().await;
        let words = "of group \"g\" was snoozed 2 times, and runs again in 60 min, at";
        assert!(told.contains(words), "{told}");
        assert!(told.contains(&format!("run_now job {id}")), "{told}");
        operator().run_now(pool, id).await.unwrap();
        assert_eq!(events.recv().await.unwrap().outcome, EndedAs::Retried);
        let told = says().await;
        assert!(told.contains("waits for its retry") && told.contains("attempt 3"), "{told}");
        operator().run_now(pool, id).await.unwrap();
        assert_eq!(events.recv().await.unwrap().outcome, EndedAs::Snoozed);
        let told = says().await;
        assert!(told.contains("was snoozed 3 times"), "{told}");
        let behind = enqueue(pool, "q", "g", 0).await;
        let told = client.explain_job(pool, behind).await.unwrap().unwrap().to_string();
        assert!(told.contains("behind job 1 of group \"g\", which was snoozed 3 times"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_snoozes_a_job() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let first = job_of("q", "g", 1).max_attempts(1);
    let first = seriatim::enqueue(pool, first).await.unwrap().id();
    let second = enqueue(pool, "q", "g", 2).await;
    let receive = async || {
        let received = client.receive(pool, Receive::new("q").max(10)).await.unwrap();
        received.into_iter().map(|job| job.receipt).collect::<Vec<_>>()
    };
    let receipts = receive().await;
    assert_eq!(receipts.len(), 2);
    let hour = Duration::from_hours(1);
    client.snooze(pool, &receipts[0], hour, 2).await.unwrap();
    for receipt in &receipts {
        let stale = client.snooze(pool, receipt, hour, 2).await.unwrap_err();
        assert!(matches!(stale, ReceiveError::Stale { .. }), "{stale}");
    }
    assert_eq!(receive().await, [], "the group waits");
    let seen = job(pool, first).await;
    assert_eq!((seen.snoozes, seen.attempts, seen.attempts_forgiven), (1, 1, 1));
    assert!(seen.history.is_empty() && seen.error.is_none(), "{seen:?}");
    assert_eq!(job(pool, second).await.snoozes, 0);
    operator().run_now(pool, first).await.unwrap();
    // In SQL; and a bad call does nothing.
    let receipt = receive().await.remove(0);
    for bad in ["null", "'-1 s'", "'1 s', -1", "'1 s', 10001", "'1 s', null"] {
        let sql = format!("select seriatim.snooze('{receipt}', {bad})");
        let refused = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap_err();
        let code = refused.as_database_error().and_then(DatabaseError::code).map(Cow::into_owned);
        assert_eq!(code.as_deref(), Some("22023"), "{bad}: {refused}");
    }
    let done = format!("select seriatim.snooze('{receipt}', '0')");
    assert_eq!(value::<String>(pool, done).await, "done");
    // It was put off twice.
    let receipt = receive().await.remove(0);
    client.snooze(pool, &receipt, hour, 2).await.unwrap();
    let failed = ended(pool, first).await;
    assert_eq!((failed.status, failed.snoozes), (JobStatus::Failed, 2));
    let words = "it was snoozed 2 times, as often as it may be, and is not ready";
    assert_eq!(failed.error.unwrap().message, words);
    // One too many backs off as a failure, whatever its delay.
    let backs_off = enqueue(pool, "other", "g", 4).await;
    let received = client.receive(pool, Receive::new("other")).await.unwrap();
    client.snooze(pool, &received[0].receipt, hour, 0).await.unwrap();
    let failed = job(pool, backs_off).await;
    assert_eq!((failed.status, failed.snoozes, failed.history.len()), (JobStatus::Queued, 0, 1));
    let waits = "select run_at < now() + interval '2 s' from seriatim.job where queue = 'other'";
    assert!(value::<bool>(pool, waits).await, "{failed:?}");
    // A job without a group.
    let plain = seriatim::NewJob::new("q", &json!(3));
    let plain = seriatim::enqueue(pool, plain).await.unwrap().id();
    for receipt in receive().await {
        client.snooze(pool, &receipt, Duration::ZERO, 100).await.unwrap();
    }
    assert_eq!(job(pool, plain).await.snoozes, 1);
    let _running = serve(&database, 10, queue("q"), handler(async |_, data| Ok(data))).await;
    drained(pool, "q").await;
}

//! Batches: jobs of any queues and groups, whose end starts one follow-up.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::{Batch, BatchState, QueueSettings};
use seriatim::receive::Receive;
use seriatim::testing::Jobs;
use seriatim::{
    BatchEnd, BatchError, Client, ControlError, EnqueueError, Hold, JobError, JobStatus, NewBatch,
    NewJob, Retention, RetryPolicy,
};
use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::support::{
    Log, by_hand, database, drained, ended, handler, handler_with, job, job_of, jobs_where,
    operator, processor, queue, sample, size, started, until_jobs, value,
};

fn client() -> Client {
    Client::default()
}

fn follow_up() -> NewJob {
    NewJob::new("after", &"all").group("after")
}

/// Opens a batch whose follow-up is enqueued in any case.
async fn opened(pool: &PgPool, when: BatchEnd) -> i64 {
    client().open_batch(pool, NewBatch::new("b", follow_up()).when(when)).await.unwrap()
}

async fn joined(pool: &PgPool, batch: i64, group: &str) -> i64 {
    client().enqueue(pool, job_of("q", group, 1).batch(batch)).await.unwrap().id()
}

/// Opens a batch of one job, and seals it.
async fn of_one(pool: &PgPool, when: BatchEnd) -> (i64, i64) {
    let batch = opened(pool, when).await;
    let job = joined(pool, batch, "g").await;
    assert!(client().seal_batch(pool, batch).await.unwrap());
    (batch, job)
}

async fn end(pool: &PgPool) -> u64 {
    client().end_batches(pool).await.unwrap()
}

async fn batch(pool: &PgPool, id: i64) -> Batch {
    client().batch(pool, id).await.unwrap().unwrap_or_else(|| panic!("there is no batch {id}"))
}

async fn follow_ups(pool: &PgPool) -> i64 {
    jobs_where(pool, "queue = 'after'").await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_several_queues_start_one_follow_up_with_results() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let (pool, log) = (database.pool(), Log::default());
        let run =
            handler(async |_, data: Value| Ok(json!({ "doubled": data.as_i64().unwrap() * 2 })));
        let also = handler(async |_, data| Ok(data));
        let total = handler_with(
            (log.clone(), pool.clone()),
            async |(log, pool): (Log, PgPool), job, _| {
                let batch = job.ended_batch().ok_or_else(|| JobError::fail("no batch"))?;
                let jobs =
                    client().batch_jobs(&pool, batch, None).await.map_err(JobError::retry)?;
                let results: Vec<_> = jobs.iter().map(|job| job.result.clone().unwrap()).collect();
                log.add(format!("{} after {}", job.queue(), Value::from(results)));
                Ok(Value::Null)
            },
        );
        let builder = processor(&database, 12).await;
        let builder = builder.queue(queue("q").hold(hold), run).queue(queue("p").hold(hold), also);
        // A queue that keeps nothing: results outlive their jobs.
        let running = started(builder.queue(queue("after"), total)).await;

        let mut tx = pool.begin().await.unwrap();
        let batch = NewBatch::new("march", follow_up());
        let batch = client().open_batch(&mut *tx, batch).await.unwrap();
        let jobs = [("q", "a", 1), ("q", "b", 2), ("p", "a", 3)]
            .map(|(queue, group, n)| job_of(queue, group, n).batch(batch));
        client().enqueue_many(&mut *tx, jobs).await.unwrap();
        client().seal_batch(&mut *tx, batch).await.unwrap();
        tx.commit().await.unwrap();

        let heard = log.wait_for(1).await;
        assert_eq!(heard, ["after after [{\"doubled\":2},{\"doubled\":4},3]"], "{hold:?}");
        let ended = self::batch(pool, batch).await;
        assert_eq!((ended.state, ended.succeeded.count), (BatchState::Ended, 3));
        assert_eq!(follow_ups(pool).await, 1);
        assert_eq!(job(pool, ended.follow_up.unwrap()).await.ended_batch(), Some(batch));
        running.shutdown(Duration::from_secs(5)).await;
        assert_eq!(log.entries().len(), 1);
    }
}

#[tokio::test]
async fn a_batch_without_jobs_ends_when_it_is_sealed() {
    let database = database().await;
    let pool = database.pool();
    let id = opened(pool, BatchEnd::AllSucceeded).await;
    assert_eq!(end(pool).await, 0);
    assert_eq!(batch(pool, id).await.state, BatchState::Open);
    assert!(client().seal_batch(pool, id).await.unwrap());
    assert!(!client().seal_batch(pool, id).await.unwrap(), "it is sealed");
    assert_eq!(batch(pool, id).await.state, BatchState::Ending);
    assert_eq!((end(pool).await, end(pool).await), (1, 0));
    assert_eq!(batch(pool, id).await.state, BatchState::Ended);
    let none = client().seal_batch(pool, id + 1).await;
    assert!(matches!(none, Err(BatchError::NoSuchBatch { batch }) if batch == id + 1));
}

#[tokio::test]
async fn a_sealed_batch_is_joined_by_no_job() {
    let database = database().await;
    let pool = database.pool();
    let (id, _) = of_one(pool, BatchEnd::AllEnded).await;
    let late = client().enqueue(pool, job_of("q", "g", 2).batch(id)).await;
    assert!(matches!(late, Err(EnqueueError::BatchSealed { batch }) if batch == id), "{late:?}");
    let many = [job_of("q", "g", 2), job_of("q", "g", 3).batch(id)];
    let many = client().enqueue_many(pool, many).await;
    assert!(matches!(many, Err(EnqueueError::BatchSealed { .. })), "{many:?}");
    let by_sql = "select * from seriatim.enqueue('q', '1', 'g', batch => 1)";
    let by_sql = sqlx::query(by_sql).execute(pool).await.unwrap_err().to_string();
    assert!(by_sql.contains("batch 1 is sealed"), "{by_sql}");
    assert_eq!(jobs_where(pool, "true").await, 1, "nothing was written");

    let mut tx = pool.begin().await.unwrap();
    let gone = NewBatch::new("rolled back", follow_up());
    let gone = client().open_batch(&mut *tx, gone).await.unwrap();
    tx.rollback().await.unwrap();
    let none = client().enqueue(pool, job_of("q", "g", 2).batch(gone)).await;
    assert!(matches!(none, Err(EnqueueError::NoSuchBatch { batch }) if batch == gone), "{none:?}");
    assert!(client().batch(pool, gone).await.unwrap().is_none());
}

#[tokio::test]
async fn a_duplicate_joins_no_batch() {
    let database = database().await;
    let pool = database.pool();
    let once = || job_of("q", "g", 1).dedup_id("once");
    client().enqueue(pool, once()).await.unwrap();
    let id = opened(pool, BatchEnd::AllEnded).await;
    assert!(client().enqueue(pool, once().batch(id)).await.unwrap().is_duplicate());
    client().seal_batch(pool, id).await.unwrap();
    assert_eq!(end(pool).await, 1);
}

#[tokio::test]
async fn every_end_of_a_job_is_one_of_its_batch() {
    let ends = [
        ("select * from seriatim.cancel({job})", "cancelled"),
        ("select * from seriatim.skip({job})", "failed"),
        ("select seriatim.purge('q')", "cancelled"),
        ("select seriatim.purge('q', 'g')", "cancelled"),
        ("select * from seriatim.park('q', 'g')", "failed"),
        ("select seriatim.ack(r.receipt) from seriatim.receive('q') r", "succeeded"),
        (
            "select seriatim.purge('q', everything => true) from seriatim.receive('q') r",
            "cancelled",
        ),
    ];
    for (sql, status) in ends {
        for when in sample([BatchEnd::AllSucceeded, BatchEnd::AllEnded]) {
            let database = database().await;
            let pool = database.pool();
            let (id, job) = of_one(pool, when).await;
            assert_eq!(end(pool).await, 0);
            let running = batch(pool, id).await;
            assert_eq!(running.state, BatchState::Running);
            assert!(running.to_string().contains("waits for 1 job:"), "{running}");
            let explained = client().explain_job(pool, job).await.unwrap().unwrap();
            assert!(
                explained.to_string().contains(&format!("It is of batch {id}.")),
                "{explained}"
            );
            by_hand(pool, sql.replace("{job}", &job.to_string())).await;
            let starts = when == BatchEnd::AllEnded || status == "succeeded";
            assert_eq!(end(pool).await, u64::from(starts), "{sql} {when}");
            let now = batch(pool, id).await;
            let state = if starts { BatchState::Ended } else { BatchState::Failed };
            assert_eq!(now.state, state, "{sql} {when}");
            assert_eq!(now.failed_at.is_some(), !starts);
            let jobs = client().batch_jobs(pool, id, None).await.unwrap();
            let jobs: Vec<_> = jobs.iter().map(|job| (job.job, job.status.to_string())).collect();
            assert_eq!(jobs, [(job, status.to_owned())], "{sql}");
        }
    }
}

#[tokio::test]
async fn ends_of_attempts_count_whatever_is_kept() {
    let outcomes: [(&str, RetryPolicy, JobStatus); 2] = [
        ("fails", RetryPolicy::new(1), JobStatus::Failed),
        ("succeeds", RetryPolicy::new(1), JobStatus::Succeeded),
    ];
    for keeps in [Retention::Never, Retention::Forever] {
        for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
            for (outcome, retry, status) in &outcomes {
                let database = database().await;
                let pool = database.pool();
                let (id, _) = of_one(pool, BatchEnd::AllEnded).await;
                let run = handler_with(*outcome, async |outcome: &str, _, _| match outcome {
                    "fails" => Err(JobError::fail("it cannot be done")),
                    _ => Ok(json!({ "done": true })),
                });
                let options = queue("q").hold(hold).retry(retry.clone());
                let options = options.keep_failed(keeps).keep_succeeded(keeps);
                assert_eq!(Jobs::new(pool).drain(options, run).await.unwrap(), 1);
                let kept = i64::from(keeps == Retention::Forever);
                assert_eq!(jobs_where(pool, "queue = 'q'").await, kept, "{outcome} {hold:?}");
                assert_eq!(end(pool).await, 1, "{outcome} {keeps:?} {hold:?}");
                let jobs = client().batch_jobs(pool, id, None).await.unwrap();
                assert_eq!(jobs[0].status, *status);
                let result = jobs[0].result::<Value>().unwrap();
                assert_eq!(result.is_some(), *status == JobStatus::Succeeded, "{outcome}");
            }
        }
    }
}

#[tokio::test]
async fn a_failed_batch_is_completed_by_a_retry_or_abandoned() {
    let database = database().await;
    let pool = database.pool();
    let fail = || handler(async |_, _| Err(JobError::fail("not now")));
    let (id, job) = of_one(pool, BatchEnd::AllSucceeded).await;
    let other = opened(pool, BatchEnd::AllSucceeded).await;
    joined(pool, other, "h").await;
    client().seal_batch(pool, other).await.unwrap();
    Jobs::new(pool).drain(queue("q"), fail()).await.unwrap();
    assert_eq!(end(pool).await, 0);
    let failed = batch(pool, id).await;
    assert_eq!((failed.state, failed.unsuccessful.count), (BatchState::Failed, 1));
    assert!(failed.to_string().contains("1 job did not succeed. Retry"), "{failed}");

    operator().retry(pool, job).await.unwrap();
    let again = batch(pool, id).await;
    assert_eq!((again.state, again.unsuccessful.count), (BatchState::Running, 0));
    let succeed = handler(async |_, _| Ok(json!("second")));
    Jobs::new(pool).drain(queue("q"), succeed).await.unwrap();
    assert_eq!(end(pool).await, 1);
    let ended = batch(pool, id).await;
    assert_eq!((ended.state, ended.failed_at), (BatchState::Ended, None));
    let jobs = client().batch_jobs(pool, id, None).await.unwrap();
    assert_eq!(jobs[0].result::<String>().unwrap().as_deref(), Some("second"));

    assert!(operator().abandon_batch(pool, other).await.unwrap());
    assert!(!operator().abandon_batch(pool, other).await.unwrap(), "it is abandoned");
    assert_eq!(batch(pool, other).await.state, BatchState::Abandoned);
    let none = operator().abandon_batch(pool, other + 1).await;
    assert!(matches!(none, Err(ControlError::NoSuchBatch { batch }) if batch == other + 1));
    let late = client().enqueue(pool, job_of("q", "h", 2).batch(other)).await;
    assert!(matches!(late, Err(EnqueueError::BatchSealed { .. })));
    by_hand(pool, "select seriatim.redrive('q')").await;
    let succeed = handler(async |_, _| Ok(Value::Null));
    Jobs::new(pool).drain(queue("q"), succeed).await.unwrap();
    assert_eq!(end(pool).await, 0, "nothing follows");
    let done = client().operations(pool, None, 10).await.unwrap();
    let done = done.iter().find(|operation| operation.action == "abandon_batch").unwrap();
    assert!(done.reason.as_ref().unwrap().contains(&format!("(batch {other})")), "{done:?}");
    assert_eq!(follow_ups(pool).await, 1);
}

#[tokio::test]
async fn a_dead_letter_that_was_moved_has_ended_and_its_redrive_completes() {
    for when in [BatchEnd::AllEnded, BatchEnd::AllSucceeded] {
        let database = database().await;
        let pool = database.pool();
        let settings = QueueSettings::new("q").dead_letter_queue(Some("dead".into()));
        client().configure_queue(pool, settings).await.unwrap();
        let (id, _) = of_one(pool, when).await;
        let fail = handler(async |_, _| Err(JobError::fail("not now")));
        let options = || queue("q").retry(RetryPolicy::new(1));
        Jobs::new(pool).drain(options(), fail).await.unwrap();
        assert_eq!(jobs_where(pool, "queue = 'dead' and status = 'queued'").await, 1);
        let starts = u64::from(when == BatchEnd::AllEnded);
        assert_eq!(end(pool).await, starts, "{when}");
        by_hand(pool, "select seriatim.redrive('q')").await;
        let running = batch(pool, id).await;
        assert_eq!(running.unfinished.count, 1, "{when}");
        let succeed = handler(async |_, _| Ok(Value::Null));
        assert_eq!(Jobs::new(pool).drain(options(), succeed).await.unwrap(), 1);
        assert_eq!(end(pool).await, 1 - starts, "{when}");
        assert_eq!(follow_ups(pool).await, 1);
    }
}

#[tokio::test]
async fn parked_jobs_have_not_ended_until_they_are_discarded() {
    let database = database().await;
    let pool = database.pool();
    let id = opened(pool, BatchEnd::AllEnded).await;
    for _ in 0..2 {
        joined(pool, id, "g").await;
    }
    client().seal_batch(pool, id).await.unwrap();
    by_hand(pool, "select seriatim.park('q', 'g')").await;
    client().run_maintenance(pool, queue("q")).await.unwrap();
    until_jobs(pool, "status = 'parked'", 1).await;
    assert_eq!(end(pool).await, 0);
    assert_eq!(batch(pool, id).await.unfinished.count, 1);
    by_hand(pool, "select seriatim.discard_parked('q', 'g')").await;
    assert_eq!(end(pool).await, 1);
}

#[tokio::test]
async fn a_moved_job_stays_in_its_batch_and_a_moved_follow_up_its_own() {
    let database = database().await;
    let pool = database.pool();
    let (id, old) = of_one(pool, BatchEnd::AllSucceeded).await;
    let moved = operator().move_jobs(pool, &[old], "p").await.unwrap();
    let new = moved.jobs[0].new_job;
    assert_eq!((end(pool).await, batch(pool, id).await.unfinished.count), (0, 1));
    by_hand(pool, "select seriatim.ack(r.receipt, '7') from seriatim.receive('p') r").await;
    assert_eq!(end(pool).await, 1);
    let jobs = client().batch_jobs(pool, id, None).await.unwrap();
    assert_eq!((jobs.len(), jobs[0].job), (1, new));
    let follow_up = batch(pool, id).await.follow_up.unwrap();
    let moved = operator().move_jobs(pool, &[follow_up], "later").await.unwrap();
    assert_eq!(batch(pool, id).await.follow_up, Some(moved.jobs[0].new_job));
}

#[tokio::test]
async fn a_request_that_maintenance_carries_out_counts() {
    let database = database().await;
    let pool = database.pool();
    let (_, job) = of_one(pool, BatchEnd::AllEnded).await;
    let mut locks = pool.begin().await.unwrap();
    let lock = "select from seriatim.job where id = $1 for no key update";
    sqlx::query(lock).bind(job).execute(&mut *locks).await.unwrap();
    client().cancel(pool, job).await.unwrap();
    locks.rollback().await.unwrap();
    assert_eq!(end(pool).await, 0);
    client().run_maintenance(pool, queue("q")).await.unwrap();
    assert_eq!(ended(pool, job).await.status, JobStatus::Cancelled);
    end(pool).await;
    assert_eq!(follow_ups(pool).await, 1);
}

#[tokio::test]
async fn a_batch_does_not_end_before_a_transaction_that_has_joined() {
    let database = database().await;
    let pool = database.pool();
    let id = opened(pool, BatchEnd::AllEnded).await;
    let mut first = pool.begin().await.unwrap();
    let mut second = pool.begin().await.unwrap();
    for tx in [&mut first, &mut second] {
        client().enqueue(&mut **tx, job_of("q", "g", 1).batch(id)).await.unwrap();
    }
    assert!(client().seal_batch(pool, id).await.unwrap(), "a seal waits for no join");
    assert_eq!(end(pool).await, 0);
    first.rollback().await.unwrap();
    assert_eq!(end(pool).await, 0);
    second.commit().await.unwrap();
    assert_eq!(end(pool).await, 0, "its job is there");
    by_hand(pool, "select seriatim.purge('q')").await;
    assert_eq!(end(pool).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_at_once_start_each_follow_up_once() {
    let database = database().await;
    let url = database.url();
    let pool = PgPoolOptions::new().max_connections(12).connect(&url).await.unwrap();
    let (mut batches, count) = (Vec::new(), size(20, 40));
    for n in 0..count {
        let id = opened(&pool, BatchEnd::AllSucceeded).await;
        for _ in 0..3 {
            joined(&pool, id, &format!("g{n}")).await;
        }
        client().seal_batch(&pool, id).await.unwrap();
        batches.push(id);
    }
    let looks: Vec<_> = (0..4)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                while follow_ups(&pool).await < count {
                    client().end_batches(&pool).await.unwrap();
                }
            })
        })
        .collect();
    let running: Vec<_> = (0..2)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let run = handler(async |_, _| Ok(Value::Null));
                Jobs::new(&pool).drain(queue("q"), run).await.unwrap();
            })
        })
        .collect();
    for task in running.into_iter().chain(looks) {
        task.await.unwrap();
    }
    assert_eq!(end(&pool).await, 0);
    assert_eq!(follow_ups(&pool).await, count);
    for id in batches {
        assert_eq!(batch(&pool, id).await.succeeded.count, 3);
    }
}

#[tokio::test]
async fn a_killed_session_leaves_the_end_to_another() {
    let database = database().await;
    let pool = database.pool();
    let (id, _) = of_one(pool, BatchEnd::AllSucceeded).await;
    // The session that ends the job dies before its commit.
    let mut ends = pool.begin().await.unwrap();
    let ack = "select seriatim.ack(r.receipt) from seriatim.receive('q', visibility => '0 s') r";
    sqlx::query(ack).execute(&mut *ends).await.unwrap();
    kill(pool, &mut ends).await;
    assert_eq!((end(pool).await, batch(pool, id).await.unfinished.count), (0, 1));
    by_hand(pool, "select seriatim.ack(r.receipt) from seriatim.receive('q') r").await;
    // The one that enqueues the follow-up dies before its commit.
    let mut looks = pool.begin().await.unwrap();
    let look = "select e.state from seriatim.end_batches() e";
    let state: String = sqlx::query_scalar(look).fetch_one(&mut *looks).await.unwrap();
    assert_eq!(state, "ended");
    assert_eq!(end(pool).await, 0, "its row is locked");
    kill(pool, &mut looks).await;
    assert_eq!(follow_ups(pool).await, 0);
    assert_eq!((end(pool).await, end(pool).await), (1, 0));
    assert_eq!(follow_ups(pool).await, 1);
}

/// Ends the session of a transaction, and waits until its locks are gone.
async fn kill(pool: &PgPool, tx: &mut sqlx::PgTransaction<'_>) {
    let pid: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut **tx).await.unwrap();
    value::<bool>(pool, format!("select pg_terminate_backend({pid}, 10000)")).await;
}

#[tokio::test]
async fn the_last_ends_and_a_seal_wake_maintenance() {
    let database = database().await;
    let pool = database.pool();
    let id = opened(pool, BatchEnd::AllEnded).await;
    for n in 0..4 {
        joined(pool, id, &format!("g{n}")).await;
    }
    let mut listener = PgListener::connect_with(pool).await.unwrap();
    listener.listen("seriatim.wake").await.unwrap();
    let said = "select pg_notify('seriatim.wake', 'said')";
    let ack = "select seriatim.ack(r.receipt) from seriatim.receive('q') r";
    // Before the seal nothing is said, and with three others left neither.
    for (sql, wakes) in
        [(ack, false), ("select seriatim.seal_batch(1)", true), (ack, true), (ack, true)]
    {
        by_hand(pool, sql).await;
        by_hand(pool, said).await;
        let mut heard = Vec::new();
        while heard.last().map(String::as_str) != Some("said") {
            heard.push(listener.recv().await.unwrap().payload().to_owned());
        }
        assert_eq!(heard.len() == 2 && heard[0].is_empty(), wakes, "{sql}: {heard:?}");
    }
}

#[tokio::test]
async fn a_refused_follow_up_holds_up_no_other_and_is_tried_again() {
    let database = database().await;
    let pool = database.pool();
    let bad = NewBatch::new("bad", NewJob::new("refused", &1));
    let bad = client().open_batch(pool, bad).await.unwrap();
    let good = opened(pool, BatchEnd::AllEnded).await;
    for id in [bad, good] {
        client().seal_batch(pool, id).await.unwrap();
    }
    by_hand(pool, "alter table seriatim.job add constraint no_refused check (queue <> 'refused')")
        .await;
    let refused = client().end_batches(pool).await;
    assert!(matches!(&refused, Err(ControlError::BatchRefused { batch, .. }) if *batch == bad));
    assert_eq!(batch(pool, good).await.state, BatchState::Ended);
    let stuck = batch(pool, bad).await;
    assert_eq!(stuck.state, BatchState::Refused);
    assert!(stuck.to_string().contains("no_refused"), "{stuck}");
    by_hand(pool, "alter table seriatim.job drop constraint no_refused").await;
    assert_eq!(end(pool).await, 0, "it waits for a round");
    client().run_maintenance(pool, queue("q")).await.unwrap();
    assert_eq!(end(pool).await, 1);
}

#[tokio::test]
async fn a_batch_is_kept_as_long_as_its_follow_up() {
    let database = database().await;
    let pool = database.pool();
    let (id, _) = of_one(pool, BatchEnd::AllEnded).await;
    let run = handler(async |_, _| Ok(json!(1)));
    let never = || queue("q").keep_succeeded(Retention::Never);
    Jobs::new(pool).drain(never(), run).await.unwrap();
    assert_eq!(end(pool).await, 1);
    let round = async || client().run_maintenance(pool, queue("q")).await.unwrap();
    round().await;
    assert_eq!(client().batch_jobs(pool, id, None).await.unwrap().len(), 1);
    let follows = handler(async |_, _| Ok(Value::Null));
    let after = queue("after").keep_succeeded(Retention::Never);
    Jobs::new(pool).drain(after, follows).await.unwrap();
    drained(pool, "after").await;
    round().await;
    assert!(client().batch(pool, id).await.unwrap().is_none());
    let left =
        "select (select count(*) from seriatim.batch_end) + (select count(*) from seriatim.batch)";
    assert_eq!(value::<i64>(pool, left).await, 0);
}

#[tokio::test]
async fn a_large_result_is_read_from_its_job() {
    let database = database().await;
    let pool = database.pool();
    let (id, _) = of_one(pool, BatchEnd::AllEnded).await;
    let run = handler(async |_, _| Ok(json!("x".repeat(70_000))));
    Jobs::new(pool).drain(queue("q"), run).await.unwrap();
    let kept = "select count(result) from seriatim.batch_end";
    assert_eq!(value::<i64>(pool, kept).await, 0, "it is not copied");
    let jobs = client().batch_jobs(pool, id, None).await.unwrap();
    assert_eq!(jobs[0].result::<String>().unwrap().unwrap().len(), 70_000);
}

#[tokio::test]
async fn receivers_open_and_end_batches_in_sql_alone() {
    let database = database().await;
    let pool = database.pool();
    let open = "select seriatim.open_batch('b', 'after', 'after', '{\"data\": 1}')";
    let id: i64 = value(pool, open).await;
    for group in ["a", "b"] {
        by_hand(pool, format!("select seriatim.enqueue('q', '1', '{group}', batch => {id})")).await;
    }
    by_hand(pool, format!("select seriatim.seal_batch({id})")).await;
    by_hand(pool, "select seriatim.ack(r.receipt, '2') from seriatim.receive('q') r").await;
    by_hand(pool, "select * from seriatim.end_batches()").await;
    assert_eq!(follow_ups(pool).await, 0);
    let nack = "select seriatim.nack(r.receipt, '0 s') from seriatim.receive('q') r";
    by_hand(pool, nack).await;
    by_hand(pool, "select seriatim.ack(r.receipt, '3') from seriatim.receive('q') r").await;
    by_hand(pool, "select * from seriatim.end_batches()").await;
    let received = client().receive(pool, Receive::new("after")).await.unwrap();
    assert_eq!(received[0].ended_batch(), Some(id));
    let results = format!("select array_agg(result) from seriatim.batch_jobs({id})");
    assert_eq!(value::<Vec<Value>>(pool, results).await, [json!(2), json!(3)]);
    for wrong in [
        "select seriatim.open_batch(null, 'after', null, '{\"data\": 1}')",
        "select seriatim.open_batch('b', '', null, '{\"data\": 1}')",
        "select seriatim.open_batch('b', 'after', null, '{}')",
        "select seriatim.open_batch('b', 'after', null, '{\"data\": 1}', 'soon')",
        "select seriatim.enqueue('q', '1', batch => 99)",
    ] {
        let error = sqlx::query(wrong).execute(pool).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code().map(String::from));
        assert_eq!(code.as_deref(), Some("22023"), "{wrong}: {error}");
    }
}

#[tokio::test]
async fn a_job_that_had_failed_and_is_moved_ends_in_its_new_queue_alone() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "select seriatim.configure_queue('q', '{\"max_attempts\": 1}')").await;
    by_hand(pool, "select seriatim.open_batch('parts', 'totals', 'f', '{\"data\": 1}')").await;
    let join = "select count(*) from seriatim.enqueue('q', '1', 'g', \
                batch => (select id from seriatim.batch))";
    assert_eq!(value::<i64>(pool, join).await, 1);
    by_hand(pool, "select seriatim.seal_batch(id) from seriatim.batch").await;
    let nack = "select seriatim.nack(r.receipt) from seriatim.receive('q') r";
    assert_eq!(value::<String>(pool, nack).await, "done");
    let end = "select seriatim.end_batches()";
    by_hand(pool, end).await;
    by_hand(pool, "select from seriatim.job j cross join seriatim.retry(j.id)").await;
    by_hand(pool, "select from seriatim.move_jobs(array(select id from seriatim.job), 'other')")
        .await;
    let ack = "select seriatim.ack(r.receipt) from seriatim.receive('other') r";
    assert_eq!(value::<String>(pool, ack).await, "done");
    by_hand(pool, end).await;
    let started = "select count(*) from seriatim.job where queue = 'totals'";
    assert_eq!(value::<i64>(pool, started).await, 1, "the batch has succeeded");
}

/// Else it would be refused when all is done, and nothing could correct it.
#[tokio::test]
async fn a_follow_up_that_could_not_be_enqueued_is_refused_as_the_batch_is_opened() {
    let database = database().await;
    let pool = database.pool();
    let open = "select seriatim.open_batch('b', 'totals', null, $1::jsonb)";
    for job in [
        r#"{"data": 1, "priority": 50}"#,
        r#"{"data": 1, "delay": "5 s"}"#,
        r#"{"data": 1, "limit_key": "no group"}"#,
        r#"{"data": 1, "headers": [1]}"#,
        r#"{"data": 1, "max_attempts": "x"}"#,
        r#"{"data": 1, "timeout_ms": 0}"#,
        r#"{"data": 1, "prioriti": 5}"#,
        r#"{"data": 1, "dedup_id": "once"}"#,
        r#"{"payload": "zz"}"#,
    ] {
        let refused = sqlx::query(open).bind(job).execute(pool).await;
        assert!(refused.is_err(), "{job}");
    }
    let good = r#"{"data": 1, "priority": 5, "delay": 60, "timeout_ms": 1000, "name": "total"}"#;
    sqlx::query(open).bind(good).execute(pool).await.unwrap();
    let traces =
        "select (select count(*) from seriatim.job) + (select count(*) from seriatim.dedup)";
    assert_eq!(value::<i64>(pool, traces).await, 0, "a trial leaves nothing");
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.batch").await, 1);
    let hint = "select * from seriatim.batch_jobs(1, n => -1)";
    let negative = sqlx::query(hint).execute(pool).await.unwrap_err().to_string();
    assert!(negative.contains("n is -1, it must be at least 0"), "{negative}");
}

//! P1: in a group the next job to run is the lowest id that is not finished.

use std::time::Duration;

use serde_json::json;
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{Client, Hold, JobError, JobStatus, NewJob, RetryPolicy, Running};
use sqlx::{Connection, PgPool};
use tokio::time::sleep;

use super::{HOLD, database, queue, worker};
use crate::support::witness::{self, Findings, Step, findings};
use crate::support::worker_process::WorkerProcess;
use crate::support::{
    self, Gate, Log, UNSEEN, by_hand, drained, enqueue, eventually, handler_with, job, job_of,
    nothing_remains, processor, serve, size, started, until_groups, until_jobs,
};

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_group_run_in_the_order_of_their_enqueues() {
    let database = database().await;
    let log = Log::default();
    for n in 0..30 {
        enqueue(database.pool(), "q", &format!("g{}", n % 3), n).await;
    }
    let _running = serve(
        &database,
        10,
        queue("q"),
        handler_with(log.clone(), async |log, job, data| {
            let entry = format!("{} {data}", job.group().unwrap());
            log.add(entry);
            Ok(json!(null))
        }),
    )
    .await;
    drained(database.pool(), "q").await;
    let entries = log.entries();
    assert_eq!(entries.len(), 30);
    for group in ["g0", "g1", "g2"] {
        let order: Vec<u32> = entries
            .iter()
            .filter_map(|entry| entry.strip_prefix(group)?.trim().parse().ok())
            .collect();
        assert_eq!(order.len(), 10);
        assert!(order.is_sorted(), "{group}: {order:?}");
    }
}

/// A processor that logs group, data and attempt, and does what the data's letter says: fails
/// twice, or waits for the gate.
async fn start(database: &TestDatabase, slots: usize, log: &Log, gate: &Gate) -> Running {
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data| {
        let data = data.as_str().unwrap();
        log.add(format!("{data} {}", job.attempt()));
        if data.starts_with("fails twice") && job.attempt() < 3 {
            return Err(JobError::retry("as asked"));
        }
        if data.starts_with("waits") {
            gate.passed().await;
        }
        Ok(json!(null))
    });
    let retry = RetryPolicy::new(10).base(Duration::from_millis(150)).factor(1.0);
    serve(database, 10, queue("q").concurrency(slots).retry(retry), run).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_keeps_its_place_through_its_back_off() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let _running = start(&database, 4, &log, &Gate::default()).await;
    let mut ids = Vec::new();
    for data in ["first", "fails twice", "behind it", "last"] {
        ids.push(enqueue(pool, "q", "g", data).await);
    }
    drained(pool, "q").await;
    let expected =
        ["first 1", "fails twice 1", "fails twice 2", "fails twice 3", "behind it 1", "last 1"];
    assert_eq!(log.entries(), expected);
    let failed = job(pool, ids[1]).await;
    let ends: Vec<_> = failed.history.iter().map(|entry| entry.finished_at).collect();
    let starts = [failed.history[1].started_at, failed.last_started_at];
    for (start, end) in starts.iter().zip(ends) {
        // Less a jitter of a fifth.
        let waited = start.unwrap() - end;
        assert!(waited.num_milliseconds() >= 120, "{waited}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_head_holds_its_followers() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let _running = start(&database, 4, &log, &Gate::default()).await;
    let later = Duration::from_hours(1);
    let delayed = job_of("q", "g", "delayed").delay(later);
    let delayed = seriatim::enqueue(pool, delayed).await.unwrap().id();
    enqueue(pool, "q", "g", "behind it").await;
    // Its head has been read. It sleeps until its head is due, which is flagged until then; what
    // comes behind does not change that.
    let sleeps = "select count(*) from seriatim.queue_group join seriatim.job on id = head_id
                  where ready_at = run_at and not exists (select from seriatim.job f where f.flagged and f.id <> head_id)";
    eventually(pool, sleeps, 1_i64).await;
    enqueue(pool, "q", "g", "also behind").await;
    eventually(pool, sleeps, 1_i64).await;
    enqueue(pool, "q", "other", "other").await;
    assert_eq!(log.wait_for(1).await, ["other 1"]);

    by_hand(
        pool,
        format!("update seriatim.job set run_at = now(), turn_at = now(), flagged = true where id = {delayed}"),
    )
    .await;
    drained(pool, "q").await;
    assert_eq!(log.entries()[1..], ["delayed 1", "behind it 1", "also behind 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_head_is_on_time_behind_a_delay() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let _running = start(&database, 4, &log, &Gate::default()).await;
    let delayed = job_of("q", "g", "delayed").delay(Duration::from_millis(700));
    let delayed = seriatim::enqueue(pool, delayed).await.unwrap().id();
    enqueue(pool, "q", "g", "behind it").await;
    drained(pool, "q").await;
    assert_eq!(log.entries(), ["delayed 1", "behind it 1"]);
    let delayed = job(pool, delayed).await;
    assert!(delayed.last_started_at.unwrap() >= delayed.run_at, "{delayed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_id_that_commits_late_goes_next() {
    let database = database().await;
    let pool = database.pool();
    let (log, gate) = (Log::default(), Gate::default());
    let _running = start(&database, 4, &log, &gate).await;
    let mut late = pool.begin().await.unwrap();
    for data in ["late 1", "late 2"] {
        seriatim::enqueue(&mut *late, job_of("q", "g", data)).await.unwrap();
    }
    let mut later = pool.begin().await.unwrap();
    seriatim::enqueue(&mut *later, job_of("q", "g", "later")).await.unwrap();
    enqueue(pool, "q", "g", "waits 1").await;
    enqueue(pool, "q", "g", "waits 2").await;
    log.wait_for(1).await;
    late.commit().await.unwrap();
    // Not beside the running one: a claim has come past, as the other group's job shows.
    enqueue(pool, "q", "other", "other").await;
    assert_eq!(log.wait_for(2).await, ["waits 1 1", "other 1"]);
    gate.pass(1);
    log.wait_for(5).await;
    // While another one runs, and after that the group's row is gone.
    later.commit().await.unwrap();
    gate.pass(1);
    drained(pool, "q").await;
    let expected = ["late 1 1", "late 2 1", "waits 2 1", "later 1"];
    assert_eq!(log.entries()[2..], expected);

    let mut late = pool.begin().await.unwrap();
    seriatim::enqueue(&mut *late, job_of("q", "g", "last")).await.unwrap();
    enqueue(pool, "q", "g", "before").await;
    drained(pool, "q").await;
    nothing_remains(pool).await;
    late.commit().await.unwrap();
    drained(pool, "q").await;
    assert_eq!(log.entries()[6..], ["before 1", "last 1"]);
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_id_goes_next_even_if_no_worker_can_adopt_it() {
    let database = database().await;
    let pool = database.pool();
    let (log, gate) = (Log::default(), Gate::default());
    let _running = start(&database, 4, &log, &gate).await;
    let mut late = pool.begin().await.unwrap();
    let first = job_of("q", "g", "late");
    seriatim::enqueue(&mut *late, first).await.unwrap();
    enqueue(pool, "q", "g", "waits").await;
    enqueue(pool, "q", "g", "behind it").await;
    log.wait_for(1).await;
    until_jobs(pool, UNSEEN, 0).await;
    let mut adopter = database.connect().await.unwrap();
    let lock = "begin; select from seriatim.lock_new_groups('q', array['g'])";
    sqlx::raw_sql(lock).execute(&mut adopter).await.unwrap();
    late.commit().await.unwrap();
    gate.pass(1);
    drained(pool, "q").await;
    assert_eq!(log.entries(), ["waits 1", "late 1", "behind it 1"]);
    // The lock did what it is here for: the group, which has no row any more, has to wait.
    until_groups(pool, "true", 0).await;
    let new = enqueue(pool, "q", "g", "new").await;
    assert_eq!(job(pool, new).await.status, JobStatus::Queued);
    adopter.close().await.unwrap();
    log.wait_for(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_taken_over_goes_on_before_a_late_id() {
    if HOLD != Hold::Transaction {
        // Only receivers are here, which have no hold: once is enough.
        return;
    }
    // With a spacing no two jobs of a group would be received at once.
    let database = support::database().await;
    let (pool, client) = (database.pool(), Client::default());
    let mut transaction = pool.begin().await.unwrap();
    let late = seriatim::enqueue(&mut *transaction, job_of("q", "g", "late")).await.unwrap().id();
    let first = enqueue(pool, "q", "g", "first").await;
    let behind = enqueue(pool, "q", "g", "behind it").await;
    let lost = Receive::new("q").max(10).visibility(Duration::from_secs(1));
    let lost = client.receive(pool, lost).await.unwrap();
    assert_eq!(lost.iter().map(|job| job.receipt.job()).collect::<Vec<_>>(), [first, behind]);
    transaction.commit().await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        for job in client.receive(pool, Receive::new("q")).await.unwrap() {
            seen.push(job.receipt.job());
            client.ack(pool, &job.receipt).await.unwrap();
        }
        // No message says when a visibility is over.
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seen, [first, late, behind]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_a_group_run_side_by_side_oldest_first() {
    let database = database().await;
    let pool = database.pool();
    let (log, gate) = (Log::default(), Gate::default());
    let ungrouped = |data: String| NewJob::new("q", &data);
    let one = start(&database, 1, &log, &gate).await;
    seriatim::enqueue_many(pool, (0..20).map(|n| ungrouped(format!("job {n}")))).await.unwrap();
    drained(pool, "q").await;
    let expected: Vec<String> = (0..20).map(|n| format!("job {n} 1")).collect();
    assert_eq!(log.entries(), expected);
    one.shutdown(Duration::from_secs(5)).await;

    let _four = start(&database, 4, &log, &gate).await;
    seriatim::enqueue_many(pool, (0..6).map(|n| ungrouped(format!("waits {n}")))).await.unwrap();
    // All four slots are taken, by the oldest four.
    let mut entries = log.wait_for(24).await.split_off(20);
    entries.sort();
    assert_eq!(entries, [0, 1, 2, 3].map(|n| format!("waits {n} 1")));
    gate.pass(6);
    drained(pool, "q").await;
    assert_eq!(log.entries().len(), 26);
}

/// Two producers whose jobs go to six groups, some of which fail now and then.
async fn produce(pool: &PgPool) -> usize {
    let each = size(48, 200);
    for n in 0..each {
        let group = ["a", "b", "c", "d", "e", "f"][n % 6];
        let n = u32::try_from(n).unwrap();
        let jobs =
            [0, 1].map(|producer| witness::job("q", Some(group), &Step { producer, n, ms: 1 }));
        seriatim::enqueue_many(pool, jobs).await.unwrap();
    }
    2 * each
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processors_keep_the_order() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let mut running = Vec::new();
    for _ in 0..4 {
        let run = handler_with(pool.clone(), async |pool, job, data| {
            let done = witness::take_step(job, &pool, data).await?;
            // After its increment, so that the order of failed attempts is seen as well.
            if job.attempt() == 1 && fastrand::u8(..) < 20 {
                return Err(JobError::retry("bad luck"));
            }
            Ok(done)
        });
        let builder = processor(&database, 4).await.queue(queue("q"), run);
        running.push(started(builder).await);
    }
    let jobs = produce(pool).await;
    drained(pool, "q").await;
    assert_eq!(findings(pool, jobs).await, Findings::default());

    // A job that had gone in between would be found.
    by_hand(pool, "update public.increment set n = 0 where seen = 7 and place = 'q/a'").await;
    let found = findings(pool, jobs).await.out_of_order;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("q/a ran 0 of "), "{found:?}");
    for running in running {
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_keep_the_order() {
    let database = database().await;
    let pool = database.pool();
    witness::prepare(pool).await;
    let (settings, log) = (worker(database.url(), &["q"]), Log::default());
    let workers: Vec<_> =
        ["one", "two", "three"].map(|name| WorkerProcess::start(name, &settings, &log)).into();
    for worker in &workers {
        worker.is_ready(&log).await;
    }
    let jobs = produce(pool).await;
    drained(pool, "q").await;
    assert_eq!(findings(pool, jobs).await, Findings::default());
    for worker in workers {
        worker.end().await;
    }
}

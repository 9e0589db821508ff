//! Operators' requests about many jobs at once: redrive, purge, release of a node.

use std::time::Duration;

use serde_json::Value;
use seriatim::explain::Reason;
use seriatim::receive::{Receive, ReceiveError};
use seriatim::testing::TestDatabase;
use seriatim::{Client, ControlError, Hold, JobError, JobStatus, NewJob, OutOfAttempts, Running};
use sqlx::PgPool;

use crate::support::{
    Gate, Log, by_hand, database, ended, enqueue, eventually, handler_with, job, job_of, job_when,
    jobs_where, nothing_remains, operator, processor, queue, serve, started, until_groups,
    until_jobs, value,
};

/// Jobs fail while there is no table `mended`. The log has what ran.
async fn start(database: &TestDatabase, then: OutOfAttempts, log: &Log) -> Running {
    serve(
        database,
        10,
        queue("q").out_of_attempts(then),
        handler_with(log.clone(), async |log, job, data| {
            let mended: bool = sqlx::query_scalar("select to_regclass('mended') is not null")
                .fetch_one(job.tx().await?)
                .await?;
            if !mended && data != "good" {
                return Err(JobError::fail("not mended"));
            }
            log.add(job.id().to_string());
            Ok(Value::Null)
        }),
    )
    .await
}

async fn enqueued(pool: &PgPool, jobs: impl IntoIterator<Item = NewJob>) -> Vec<i64> {
    seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_runs_dead_jobs_in_order_before_what_waits() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let running = start(&database, OutOfAttempts::Continue, &log).await;
    let mut jobs: Vec<NewJob> = (0..5).map(|n| job_of("q", "g", n)).collect();
    jobs.push(job_of("q", "g", "good"));
    jobs.push(job_of("q", "h", 1));
    jobs.push(NewJob::new("q", &1));
    jobs.push(NewJob::new("another", &1));
    let ids = enqueued(pool, jobs).await;
    for id in &ids[..8] {
        ended(pool, *id).await;
    }
    nothing_remains_of(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
    let good = ids[5].to_string();
    assert_eq!(log.entries(), [good.as_str()]);
    let waiting = enqueue(pool, "q", "g", 6).await;
    by_hand(pool, "create table mended ()").await;

    // In bounded batches, the oldest first.
    let first = operator().redrive(pool, "q", 3).await.unwrap();
    assert_eq!((first.jobs, first.groups, first.overtaken), (3, 1, 3), "two dead and a good one");
    let rest = operator().redrive(pool, "q", 1000).await.unwrap();
    assert_eq!((rest.jobs, rest.groups, rest.overtaken), (4, 2, 1));
    assert_eq!(operator().redrive(pool, "q", 1000).await.unwrap().jobs, 0);
    let _running = start(&database, OutOfAttempts::Continue, &log).await;
    ended(pool, waiting).await;
    for id in &ids[..8] {
        assert_eq!(ended(pool, *id).await.status, JobStatus::Succeeded);
    }
    let of_g: Vec<String> = ids[..5].iter().chain([&waiting]).map(ToString::to_string).collect();
    let mut ran = log.entries();
    ran.retain(|id| of_g.contains(id));
    assert_eq!(ran, of_g);
    assert_eq!(job(pool, ids[8]).await.attempts, 0, "another queue");
}

/// No group of the queue `q` has a row.
async fn nothing_remains_of(pool: &PgPool) {
    until_groups(pool, "queue = 'q'", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_unhalts_groups_and_skips_what_is_locked() {
    let database = database().await;
    let (pool, log, client) = (database.pool(), Log::default(), Client::default());
    let _running = start(&database, OutOfAttempts::Halt, &log).await;
    let ids = enqueued(pool, ["a", "b"].map(|group| job_of("q", group, 1))).await;
    let behind = enqueued(pool, ["a", "b"].map(|group| job_of("q", group, "good"))).await;
    for id in &ids {
        job_when(pool, *id, |job| job.status == JobStatus::Failed).await;
    }
    by_hand(pool, "create table mended ()").await;
    let mut other = pool.begin().await.unwrap();
    sqlx::query("select from seriatim.job where id = $1 for update")
        .bind(ids[0])
        .execute(&mut *other)
        .await
        .unwrap();
    let redriven = operator().redrive(pool, "q", 1000).await.unwrap();
    assert_eq!((redriven.jobs, redriven.groups, redriven.overtaken), (1, 1, 0));
    ended(pool, behind[1]).await;
    assert_eq!(client.halted_groups(pool, "q").await.unwrap().len(), 1);
    other.rollback().await.unwrap();
    assert_eq!(operator().redrive(pool, "q", 1000).await.unwrap().jobs, 1);
    ended(pool, behind[0]).await;
    for id in ids {
        assert_eq!(job(pool, id).await.status, JobStatus::Succeeded);
    }
    assert!(matches!(operator().redrive(pool, "", 1).await, Err(ControlError::Name(_))));
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_cancels_what_waits_and_leaves_what_runs() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let (seen, gate, entered) = (log.clone(), Gate::default(), Log::default());
    let _running = serve(
        &database,
        10,
        queue("q"),
        handler_with(
            (seen, gate.clone(), entered.clone()),
            async |(seen, gate, entered), job, data| {
                entered.add("in");
                if data == "runs" {
                    gate.passed().await;
                }
                seen.add(job.id().to_string());
                Ok(Value::Null)
            },
        ),
    )
    .await;
    let runs = enqueue(pool, "q", "busy", "runs").await;
    entered.wait_for(1).await;
    let hour = Duration::from_hours(1);
    let mut jobs: Vec<NewJob> = (0..1500).map(|n| job_of("q", "busy", n)).collect();
    jobs.extend((0..1100).map(|n| job_of("q", "asleep", n).delay(hour)));
    jobs.extend((0..1100).map(|n| NewJob::new("q", &n).delay(hour)));
    jobs.push(job_of("another", "busy", 1));
    let ids = enqueued(pool, jobs).await;

    let busy = operator().purge_group(pool, "q", "busy").await.unwrap();
    assert_eq!((busy.cancelled, busy.running, busy.locked), (1500, 1, 0));
    let all = operator().purge(pool, "q").await.unwrap();
    assert_eq!((all.cancelled, all.running, all.locked), (2200, 1, 0));
    let statuses: i64 = jobs_where(
        pool,
        "queue = 'q' and status = 'cancelled' \
         and finished_at is not null and attempts = 0",
    )
    .await;
    assert_eq!(statuses, 3700, "cancelled, and none deleted");
    assert_eq!(job(pool, ids[3700]).await.status, JobStatus::Queued, "another queue");
    // Jobs that come later run as ever, even in a group that slept.
    let later = enqueued(pool, ["busy", "asleep"].map(|group| job_of("q", group, 1))).await;
    ended(pool, later[1]).await;
    gate.pass(1);
    ended(pool, later[0]).await;
    assert_eq!(job(pool, runs).await.status, JobStatus::Succeeded);
    assert_eq!(log.entries(), [later[1], runs, later[0]].map(|id| id.to_string()));
    until_groups(pool, "queue = 'q'", 0).await;
    until_jobs(pool, "queue = 'q' and flagged", 0).await;
}

#[tokio::test]
async fn a_purge_says_what_another_transaction_has() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let ids = enqueued(pool, (0..3).map(|n| job_of("q", "g", n))).await;
    let mut other = pool.begin().await.unwrap();
    client.cancel(&mut *other, ids[1]).await.unwrap();
    let purged = operator().purge(pool, "q").await.unwrap();
    assert_eq!((purged.cancelled, purged.locked), (2, 1));
    other.rollback().await.unwrap();
    assert_eq!(operator().purge(pool, "q").await.unwrap().cancelled, 1);
    assert!(matches!(operator().purge_group(pool, "q", "").await, Err(ControlError::Name(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_everything_makes_receipts_stale() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let mut jobs: Vec<NewJob> =
        (0..4).map(|n| job_of("q", "g", n).dedup_id(format!("{n}"))).collect();
    jobs.extend((0..3).map(|n| NewJob::new("q", &n)));
    jobs.push(NewJob::new("q", &9).delay(Duration::from_hours(1)));
    jobs.push(job_of("another", "g", 1).dedup_id("1"));
    let ids = enqueued(pool, jobs).await;
    let grouped = Receive::new("q").group("g").max(2);
    let mut received = client.receive(pool, grouped).await.unwrap();
    assert_eq!(received.len(), 2);
    received.extend(client.receive(pool, Receive::new("q")).await.unwrap());
    let purged = operator().purge_everything(pool, "q").await.unwrap();
    assert_eq!((purged.cancelled, purged.running, purged.locked), (8, 0, 0));
    for job in &received {
        let late = client.ack(pool, &job.receipt).await.unwrap_err();
        assert!(matches!(late, ReceiveError::Stale { .. }), "{late}");
    }
    assert_eq!(jobs_where(pool, "queue = 'q' and status = 'cancelled'").await, 8);
    assert_eq!(job(pool, ids[8]).await.status, JobStatus::Queued, "another queue");
    // Ids may come again, but not those of another queue, and the group goes on.
    let again = job_of("q", "g", 5).dedup_id("1");
    assert!(!seriatim::enqueue(pool, again).await.unwrap().is_duplicate());
    let other = job_of("another", "g", 5).dedup_id("1");
    assert!(seriatim::enqueue(pool, other).await.unwrap().is_duplicate());
    assert_eq!(client.receive(pool, Receive::new("q").max(10)).await.unwrap().len(), 1);
    // The same in SQL, for as many as it is told.
    for (n, done) in [(1, 1), (10, 1), (10, 0)] {
        let sql = format!("select seriatim.purge('q', n => {n}, everything => true)");
        assert_eq!(value::<i64>(pool, sql).await, done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_everything_asks_a_processor_to_cancel() {
    let database = database().await;
    let (pool, entered) = (database.pool(), Log::default());
    let run = handler_with(entered.clone(), async |entered, job, _| {
        entered.add("in");
        job.cancelled().await;
        Err(JobError::retry("told to stop"))
    });
    let _running =
        processor(&database, 10).await.queue(queue("q"), run).build().unwrap().start().await;
    let runs = [enqueue(pool, "q", "g", 1).await, enqueued(pool, [NewJob::new("q", &1)]).await[0]];
    entered.wait_for(2).await;
    operator().purge_everything(pool, "q").await.unwrap();
    for id in runs {
        assert_eq!(ended(pool, id).await.status, JobStatus::Cancelled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_nodes_lease_is_cleared_of_suspicion() {
    // Extended long after the grace of a take-over, were it not for the suspicion.
    is_cleared_of_suspicion(true, Duration::from_secs(30)).await;
    // Without a presence as well.
    is_cleared_of_suspicion(false, Duration::from_secs(30)).await;
}

async fn is_cleared_of_suspicion(presence: bool, lease: Duration) {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let (gate, entered) = (Gate::default(), Log::default());
    let _running = started(processor(&database, 10).await.presence(presence).queue(
        queue("q").hold(Hold::Lease(lease)),
        handler_with((gate.clone(), entered.clone()), async |(gate, entered), _, _| {
            entered.add("in");
            gate.passed().await;
            Ok(Value::Null)
        }),
    ))
    .await;
    let grouped = enqueue(pool, "q", "g", 1).await;
    let ungrouped = enqueued(pool, [NewJob::new("q", &1)]).await[0];
    entered.wait_for(2).await;
    for id in [grouped, ungrouped] {
        let seen = client.explain_job(pool, id).await.unwrap().unwrap();
        assert!(matches!(seen.reason, Reason::Claimed { .. }), "{seen}");
    }
    let node: String = value(pool, "select node from seriatim.processor").await;
    // An extension may have a row for a moment.
    let (mut groups, mut jobs) = (0, 0);
    while groups == 0 || jobs == 0 {
        let released = operator().release_node(pool, &node).await.unwrap();
        groups += released.groups;
        jobs += released.jobs;
    }
    eventually(
        pool,
        "select (select count(*) from seriatim.queue_group where suspect is not null) \
         + (select count(*) from seriatim.job where suspect is not null)",
        0_i64,
    )
    .await;
    gate.pass(2);
    for id in [grouped, ungrouped] {
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 1));
    }
}

const CLAIMS: &str = "
insert into seriatim.processor (id, node, server_started_at)
values (1, 'dead', now()), (2, 'dead', now()), (3, 'alive', now());
insert into seriatim.job (id, queue, group_id, data)
select n, 'q', 'g' || n, 'null' from generate_series(1, 3) n;
insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id, claimed_by, started_at)
select 'q', 'g' || n, now() + interval '1 h', n, gen_random_uuid(), n, n, now() from generate_series(1, 3) n;
insert into seriatim.job (id, queue, data, status, attempts, last_started_at, claim, claimed_by, lease_until)
select n + 3, 'q', 'null', 'started', 1, now(), gen_random_uuid(), n, now() + interval '1 h'
from generate_series(1, 3) n;
select setval('seriatim.job_id_seq', 100);
";

#[tokio::test(flavor = "multi_thread")]
async fn a_released_nodes_jobs_are_taken_over_and_no_others() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    by_hand(pool, CLAIMS).await;
    let nobody = operator().release_node(pool, "unknown").await.unwrap();
    assert_eq!((nobody.groups, nobody.jobs), (0, 0));
    // A living transaction's hold is left alone.
    let mut hold = pool.begin().await.unwrap();
    sqlx::query("select from seriatim.queue_group where group_id = 'g2' for no key update")
        .execute(&mut *hold)
        .await
        .unwrap();
    let released = operator().release_node(pool, "dead").await.unwrap();
    assert_eq!((released.groups, released.jobs), (1, 2));
    let again = operator().release_node(pool, "dead").await.unwrap();
    assert_eq!((again.groups, again.jobs), (0, 0), "their time does not begin anew");
    let ahead: bool = value(
        pool,
        "select bool_and(t between clock_timestamp() - interval '20 s' and clock_timestamp() + interval '1.75 s') \
         from (select ready_at t from seriatim.queue_group where suspect = claim \
         union all select lease_until from seriatim.job where suspect = claim) due",
    )
    .await;
    assert!(ahead);
    by_hand(pool, "create table mended ()").await;
    let _running = start(&database, OutOfAttempts::Continue, &log).await;
    for id in [1, 4, 5] {
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 2), "{job:?}");
    }
    for id in [2, 3, 6] {
        assert_eq!(job(pool, id).await.attempts, 1, "job {id} was not the dead node's");
    }
    hold.rollback().await.unwrap();
}

//! Retention: each status has its own, what is still needed stays, and one process at a time
//! deletes.

use std::time::Duration;

use serde_json::json;
use seriatim::{
    Client, JobError, JobStatus, NewJob, OutOfAttempts, Processor, QueueOptions, Retention,
    RetryPolicy,
};
use sqlx::{Executor, PgPool};

use crate::support::{
    Errors, FnHandler, STARTED, by_hand, database, ended, eventually, handler, job, job_of,
    jobs_where, nothing_remains, operator, processor, queue, started, until_jobs, value,
};

const HOUR: Duration = Duration::from_hours(1);

fn obedient() -> FnHandler {
    handler(async |job, data| {
        let cancelled = job.cancelled();
        match data.as_str() {
            Some("fails") => Err(JobError::fail("as asked")),
            Some("cancelled") => {
                cancelled.await;
                Err(JobError::retry("told to stop"))
            }
            _ => Ok(json!(null)),
        }
    })
}

fn maintains(pool: PgPool, options: QueueOptions) -> Processor {
    Processor::builder(pool)
        .poll_interval(Duration::from_millis(50))
        .maintenance_interval(Duration::from_millis(20))
        .queue(options, obedient())
        .build()
        .unwrap()
}

/// Finished jobs as they look some minutes after their end.
async fn old(pool: &PgPool, status: &str, minutes: u32, count: u32) {
    by_hand(
        pool,
        format!(
            "insert into seriatim.job (queue, group_id, status, data, finished_at) \
             select 'q', '{status} {minutes}', '{status}', 'null', now() - interval '{minutes} min' \
             from generate_series(1, {count})"
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_status_is_kept_for_its_own_time() {
    let database = database().await;
    let pool = database.pool();
    for status in ["succeeded", "failed", "cancelled"] {
        for minutes in [50, 70, 130, 60 * 24 * 900] {
            old(pool, status, minutes, 1).await;
        }
    }
    by_hand(
        pool,
        "insert into seriatim.job (queue, status, data, finished_at) \
         values ('another', 'failed', '1', now() - interval '900 days')",
    )
    .await;
    let options = queue("q")
        .keep_succeeded(Retention::For(HOUR))
        .keep_failed(Retention::For(2 * HOUR))
        .keep_cancelled(Retention::Forever);
    let _running = maintains(pool.clone(), options).start().await.unwrap();
    // One succeeded, two failed, four cancelled, and that of another processor's queue.
    until_jobs(pool, "true", 8).await;
    let left: Vec<String> = value(
        pool,
        "select array_agg(distinct group_id order by group_id) from seriatim.job \
         where queue = 'q' and status <> 'cancelled'",
    )
    .await;
    assert_eq!(left, ["failed 50", "failed 70", "succeeded 50"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_processor_is_kept_by_hand() {
    let database = database().await;
    let pool = database.pool();
    for minutes in [50, 70] {
        old(pool, "succeeded", minutes, 3).await;
    }
    let dedup = "insert into seriatim.dedup values ('q', '', 'old', 1, now() - interval '1 s')";
    by_hand(pool, dedup).await;
    let client = Client::default();
    let options = queue("q").keep_succeeded(Retention::For(HOUR));
    assert_eq!(client.run_maintenance(pool, options.clone()).await.unwrap(), 3);
    assert_eq!(client.run_maintenance(pool, options).await.unwrap(), 0);
    assert_eq!(jobs_where(pool, "true").await, 3);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.dedup").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_never_kept_goes_with_its_settle() {
    let database = database().await;
    let pool = database.pool();
    let options = |name| {
        queue(name)
            .retry(RetryPolicy::new(1))
            .keep_succeeded(Retention::Never)
            .keep_failed(Retention::Never)
            .keep_cancelled(Retention::Never)
    };
    let _running = started(
        processor(&database, 20)
            .await
            .maintenance_interval(None)
            .queue(options("q"), obedient())
            .queue(options("halts").out_of_attempts(OutOfAttempts::Halt), obedient()),
    )
    .await;
    let mut cancels = Vec::new();
    for what in ["succeeds", "fails", "cancelled"] {
        let jobs = [
            job_of("q", what, what),
            job_of("q", what, "behind"),
            NewJob::new("q", what),
            // Without a group it halts nothing.
            NewJob::new("halts", what),
        ];
        let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
        if what == "cancelled" {
            cancels = vec![jobs[0].id(), jobs[2].id(), jobs[3].id()];
        }
    }
    until_jobs(pool, &format!("{STARTED} and data = '\"cancelled\"'"), 3).await;
    for id in cancels {
        Client::default().cancel(pool, id).await.unwrap();
    }
    let left = "select coalesce(string_agg(format('%s %s %s', queue, status, data), ', '), '') \
                from seriatim.job";
    eventually(pool, left, String::new()).await;
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flagged_job_stays_until_its_heads_were_read() {
    let database = database().await;
    let pool = database.pool();
    // Nothing is claimed, and so nothing adopted.
    operator().pause_queue(pool, "q").await.unwrap();
    old(pool, "cancelled", 90, 1).await;
    by_hand(pool, "update seriatim.job set flagged = true").await;
    let options = queue("q").keep_cancelled(Retention::For(HOUR));
    let _running = maintains(pool.clone(), options).start().await.unwrap();
    for round in 0..3 {
        old(pool, "cancelled", 80 + round, 1).await;
        until_jobs(pool, "not flagged", 0).await;
    }
    assert_eq!(jobs_where(pool, "true").await, 1);
    operator().resume_queue(pool, "q").await.unwrap();
    until_jobs(pool, "true", 0).await;
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_at_a_time_deletes_in_batches_around_locked_rows() {
    let database = database().await;
    let pool = database.pool();
    let mut conn = database.connect().await.unwrap();
    conn.execute("select pg_advisory_lock(hashtextextended('seriatim maintenance seriatim', 0))")
        .await
        .unwrap();
    old(pool, "succeeded", 90, 1_777).await;
    let options = || queue("q").keep_succeeded(Retention::For(HOUR));
    let errors = Errors::default();
    let one = maintains(pool.clone(), options()).start().await.unwrap();
    let builder = errors.of(processor(&database, 10).await);
    let other = started(
        builder.maintenance_interval(Duration::from_millis(20)).queue(options(), obedient()),
    )
    .await;
    // Time for ten rounds, of which none may do anything.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let count = "select count(*) from seriatim.job";
    assert_eq!(value::<i64>(pool, count).await, 1_777);

    let mut reader = pool.begin().await.unwrap();
    let locked = "select id from seriatim.job order by id limit 3 for share";
    reader.execute(locked).await.unwrap();
    conn.execute("select pg_advisory_unlock_all()").await.unwrap();
    eventually(pool, count, 3_i64).await;
    reader.rollback().await.unwrap();
    eventually(pool, count, 0_i64).await;
    one.shutdown(Duration::from_secs(5)).await;
    other.shutdown(Duration::from_secs(5)).await;
    assert_eq!(errors.but_slow_checks(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_that_halts_is_kept_even_where_failed_ones_are_not() {
    let database = database().await;
    let pool = database.pool();
    let _running = started(
        processor(&database, 10).await.maintenance_interval(Duration::from_millis(20)).queue(
            queue("q").keep_failed(Retention::Never).out_of_attempts(OutOfAttempts::Halt),
            handler(async |_, _| Err(JobError::fail("no"))),
        ),
    )
    .await;
    let bad = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    ended(pool, bad).await;
    // A job without a group halts nothing, and so is not kept.
    let ungrouped = NewJob::new("q", &1);
    let ungrouped = seriatim::enqueue(pool, ungrouped).await.unwrap().id();
    let settled = format!("select last_value >= {ungrouped} from seriatim.job_id_seq");
    assert!(value::<bool>(pool, settled).await);
    until_jobs(pool, "true", 1).await;
    assert_eq!(job(pool, bad).await.status, JobStatus::Failed);
    operator().unhalt_group(pool, "q", "g").await.unwrap();
    until_jobs(pool, "true", 0).await;
    nothing_remains(pool).await;
}

#[tokio::test]
async fn a_pause_of_a_group_that_has_ended_leaves_no_row() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let ann = operator();
    by_hand(
        pool,
        "insert into seriatim.group_setting (queue, group_id, paused_at, paused_until, out_of_attempts) \
         select 'q', 'over ' || n, now() - interval '2 s', now() - interval '1 s', null \
         from generate_series(1, 1500) n
         union all values ('q', 'until', now(), now() + interval '1 h', null), \
           ('q', 'z has a policy', now() - interval '2 s', now() - interval '1 s', 'halt')",
    )
    .await;
    ann.pause_group(pool, "other", "by hand").await.unwrap();
    ann.pause_group(pool, "q", "for a moment").await.unwrap();
    ann.resume_group(pool, "q", "for a moment").await.unwrap();
    let left = async || -> Vec<String> {
        value(
            pool,
            "select array_agg(group_id order by group_id) from seriatim.group_setting \
                     where group_id not like 'over %'",
        )
        .await
    };
    assert_eq!(left().await, ["by hand", "until", "z has a policy"]);
    client.run_maintenance(pool, queue("q")).await.unwrap();
    assert_eq!(left().await, ["by hand", "until", "z has a policy"]);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.group_setting").await, 3);
}

//! P3: a committed enqueue comes to an end or is still there; nothing strands. The sweep finds,
//! repairs and reports jobs that hand-made SQL strands.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::Cancelled;
use seriatim::testing::TestDatabase;
use seriatim::{ActiveJob, Client, JobError, JobStatus, NewJob, Running};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::queue;
use crate::support::{
    Errors, by_hand, database, drained, ended, handler, job, job_of, job_when, nothing_remains,
    processor, started, until_groups, until_jobs, value,
};

/// Succeeds, fails, panics or has followers, as chance will have it.
async fn act(job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    match fastrand::u8(..20) {
        0..3 => Err(JobError::retry("no luck")),
        3 => Err(JobError::fail("never")),
        4 => panic!("by chance"),
        5 | 6 if data != json!("follower") => {
            let group = format!("g{}", fastrand::u8(..6));
            let follower = job_of("q", &group, "follower");
            seriatim::enqueue(job.tx().await?, follower).await?;
            Ok(data)
        }
        7 => {
            // Long enough to meet a shutdown's deadline now and then.
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok(data)
        }
        _ => Ok(data),
    }
}

async fn start(database: &TestDatabase, errors: &Errors) -> Running {
    let builder = errors.of(processor(database, 5).await);
    started(
        builder
            .maintenance_interval(Duration::from_millis(20))
            .queue(queue("q"), handler(async |job, data| act(job, data).await)),
    )
    .await
}

/// Enqueues, in transactions that commit or do not, and cancels now and then.
async fn produce(pool: PgPool, latest: Arc<AtomicI64>) -> Vec<i64> {
    let mut committed = Vec::new();
    for _ in 0..60 {
        let mut tx = pool.begin().await.unwrap();
        let jobs = (0..fastrand::usize(1..5)).map(|n| {
            let job = match fastrand::u8(..7) {
                6 => NewJob::new("q", &n),
                group => job_of("q", &format!("g{group}"), n),
            };
            match fastrand::u8(..4) {
                0 => job.delay(Duration::from_millis(fastrand::u64(..30))),
                1 => job.max_attempts(1),
                _ => job,
            }
        });
        let jobs = seriatim::enqueue_many(&mut *tx, jobs).await.unwrap();
        if fastrand::u8(..6) == 0 {
            let cancelled = Client::default().cancel(&mut *tx, jobs[0].id()).await;
            assert_eq!(cancelled.unwrap(), Cancelled::Now);
        }
        if fastrand::u8(..4) == 0 {
            // Holds the transaction open, so that its ids come late.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
        }
        if fastrand::u8(..5) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            latest.fetch_max(jobs[0].id(), Ordering::Relaxed);
            committed.extend(jobs.iter().map(|job| job.id()));
        }
        if fastrand::u8(..3) == 0 {
            let victim = latest.load(Ordering::Relaxed) - fastrand::i64(..8);
            // It may have ended, or never have been committed.
            let _ = Client::default().cancel(&pool, victim).await;
        }
    }
    committed
}

#[tokio::test(flavor = "multi_thread")]
async fn all_committed_jobs_end_through_failures_and_restarts() {
    let database = database().await;
    let (pool, errors) = (database.pool(), Errors::default());
    let latest = Arc::<AtomicI64>::default();
    let producers: Vec<_> =
        (0..3).map(|_| tokio::spawn(produce(pool.clone(), Arc::clone(&latest)))).collect();
    let done = CancellationToken::new();
    let restarts = async |done: CancellationToken| {
        let mut count = 0;
        while !done.is_cancelled() {
            let running = start(&database, &errors).await;
            // The life of a process that is deployed often.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
            let deadline = Duration::from_millis(fastrand::u64(..30));
            let report = running.shutdown(deadline).await;
            assert_eq!((report.still_running, report.lost), (0, 0), "{report:?}");
            count += 1;
        }
        count
    };
    let producing = async {
        let mut ids = Vec::new();
        for producer in producers {
            ids.extend(producer.await.unwrap());
        }
        done.cancel();
        ids
    };
    let (ids, one, other) = tokio::join!(producing, restarts(done.clone()), restarts(done.clone()));
    assert!(one + other > 2, "processors came and went");

    let last = start(&database, &errors).await;
    drained(pool, "q").await;
    nothing_remains(pool).await;
    let missing: Vec<i64> = sqlx::query_scalar(
        "select id from unnest($1::int8[]) id where not exists \
         (select from seriatim.job j where j.id = id.id and j.finished_at is not null)",
    )
    .bind(&ids)
    .fetch_all(pool)
    .await
    .unwrap();
    assert!(missing.is_empty(), "{missing:?}");
    let states: i64 = value(pool, "select count(distinct status) from seriatim.job").await;
    assert_eq!(states, 3, "some succeeded, some failed, some were cancelled");
    let overlaps: i64 = value(
        pool,
        "select count(*) from seriatim.job a join seriatim.job b using (group_id) \
         where a.id < b.id and a.attempts = 1 and b.attempts = 1 \
         and b.last_started_at < a.finished_at and a.last_started_at < b.finished_at \
         and a.status <> 'cancelled' and b.status <> 'cancelled'",
    )
    .await;
    assert_eq!(overlaps, 0, "and none beside another of its group");
    last.shutdown(Duration::from_secs(5)).await;
    assert_eq!(errors.named("Stranded"), Vec::<String>::new());
}

/// Waits until so many groups are reported as repaired: a report follows its commit. More fail.
async fn repaired(errors: &Errors, groups: u64) {
    let count = |text: &String| -> u64 {
        let (_, words) = text.split_once(": ").unwrap();
        words.split(' ').next().unwrap().parse().unwrap()
    };
    let sum = || errors.named("Stranded").iter().map(count).sum::<u64>();
    errors.0.wait(&format!("{groups} groups are repaired"), |_| sum() >= groups).await;
    assert_eq!(sum(), groups);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_repairs_and_reports_what_hand_made_sql_stranded() {
    let database = database().await;
    let (pool, errors) = (database.pool(), Errors::default());
    let put = async |group: &str, delay| {
        let job = job_of("q", group, group).delay(Duration::from_secs(delay));
        seriatim::enqueue(pool, job).await.unwrap().id()
    };
    // Before any worker has seen it.
    let unflagged = put("unflagged", 0).await;
    by_hand(pool, "update seriatim.job set flagged = false").await;
    let builder = errors.of(processor(&database, 10).await);
    let _running = started(
        builder
            .maintenance_interval(Duration::from_millis(50))
            .queue(queue("q"), handler(async |_, data| Ok(data))),
    )
    .await;
    assert_eq!(ended(pool, unflagged).await.status, JobStatus::Succeeded);
    repaired(&errors, 1).await;

    let groups = ["row", "run_at", "head_id"];
    let mut ids = Vec::new();
    for group in groups {
        ids.push(put(group, 3600).await);
        put(group, 0).await;
    }
    until_groups(pool, "ready_at > now() + interval '1 min'", 3).await;
    by_hand(
        pool,
        "update seriatim.job set flagged = false;
         delete from seriatim.queue_group where group_id = 'row';
         update seriatim.queue_group set head_id = head_id + 1000 where group_id = 'head_id';
         update seriatim.job set run_at = now() where group_id in ('run_at', 'head_id')",
    )
    .await;
    for id in &ids[1..] {
        assert_eq!(ended(pool, *id).await.status, JobStatus::Succeeded);
    }
    // The one without a row is due later: its flag waits for that.
    until_jobs(pool, "flagged", 1).await;
    assert_eq!(job(pool, ids[0]).await.status, JobStatus::Queued);
    Client::default().cancel(pool, ids[0]).await.unwrap();
    nothing_remains(pool).await;
    repaired(&errors, 4).await;

    let set_back = |status: &str, jobs: &[i64]| {
        format!(
            "update seriatim.job set status = '{status}', finished_at = null, result = null \
             where id = any (array{jobs:?})"
        )
    };
    let both = [unflagged, ids[1]];
    // Started without a claim, a job of a group would be stranded for good: that is no state of it.
    let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(set_back("started", &both)));
    let refused = refused.execute(pool).await.unwrap_err();
    assert!(refused.to_string().contains("job_sound"), "{refused}");
    by_hand(pool, set_back("queued", &both)).await;
    for id in both {
        let job = job_when(pool, id, |job| job.result.is_some()).await;
        assert_eq!(job.status, JobStatus::Succeeded, "set back");
    }
    nothing_remains(pool).await;
    repaired(&errors, 6).await;

    // Claims that nobody has: of a job that has ended, and of one that has not.
    by_hand(
        pool,
        format!(
            "{};
             insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id, started_at) \
             select queue, group_id, now(), id, gen_random_uuid(), id, now() from seriatim.job \
             where id = any (array{both:?})",
            set_back("queued", &both[1..])
        ),
    )
    .await;
    let job = job_when(pool, ids[1], |job| job.result.is_some()).await;
    // Twice before: the claim is an attempt, and it was lost.
    assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 4));
    nothing_remains(pool).await;
    repaired(&errors, 6).await;
}

#[tokio::test]
async fn a_flag_on_a_job_without_a_group_is_refused() {
    let database = database().await;
    let pool = database.pool();
    seriatim::enqueue(pool, NewJob::new("q", &1)).await.unwrap();
    // An adopter could do nothing with it, and would stumble over it again and again.
    let refused =
        sqlx::query("update seriatim.job set flagged = true").execute(pool).await.unwrap_err();
    assert!(refused.to_string().contains("job_sound"), "{refused}");
}

//! P3: a committed enqueue comes to an end or is still there; nothing strands. The sweep finds,
//! repairs and reports jobs that hand-made SQL strands.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::Cancelled;
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, BatchEnd, Client, JobError, JobStatus, Missed, NewBatch, NewJob, Running, Schedule,
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{database, queue};
use crate::support::{
    Errors, by_hand, drained, ended, eventually, handler, job, job_of, job_when, jobs_where,
    nothing_remains, operator, processor, size, started, until_groups, until_jobs, value,
};

const FOLLOW_UP: &str = "all have ended";

/// Succeeds, fails, panics, has followers, puts itself off, lets its group rest or reports how far
/// it is, as chance will have it.
async fn act(job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    const MOMENT: Duration = Duration::from_millis(1);
    match fastrand::u8(..24) {
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
        8 => Err(JobError::snooze(MOMENT)),
        9 => {
            job.again_after(MOMENT);
            Ok(data)
        }
        10 if job.group().is_some() => {
            job.rest_group(chrono::Utc::now() + MOMENT, "by chance").await?;
            Ok(data)
        }
        11 => {
            job.checkpoint(&data).await?;
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

/// Enqueues, in transactions that commit or do not, and cancels now and then. Each transaction has
/// a batch of its own. Returns the jobs of those that committed, and the batches.
async fn produce(pool: PgPool, latest: Arc<AtomicI64>) -> (Vec<i64>, Vec<i64>) {
    let (client, mut committed, mut batches) = (Client::default(), Vec::new(), Vec::new());
    for _ in 0..size(30, 60) {
        let mut tx = pool.begin().await.unwrap();
        let follow_up = job_of("q", "g0", FOLLOW_UP);
        let batch = NewBatch::new("of one transaction", follow_up).when(BatchEnd::AllEnded);
        let batch = client.open_batch(&mut *tx, batch).await.unwrap();
        let jobs = (0..fastrand::usize(1..5)).map(|n| {
            let job = match fastrand::u8(..7) {
                6 => NewJob::new("q", &n),
                group => job_of("q", &format!("g{group}"), n),
            };
            let job = job.batch(batch);
            match fastrand::u8(..4) {
                0 => job.delay(Duration::from_millis(fastrand::u64(..30))),
                1 => job.max_attempts(1),
                _ => job,
            }
        });
        let jobs = seriatim::enqueue_many(&mut *tx, jobs).await.unwrap();
        if fastrand::u8(..6) == 0 {
            let cancelled = client.cancel(&mut *tx, jobs[0].id()).await;
            assert_eq!(cancelled.unwrap(), Cancelled::Now);
        }
        if fastrand::u8(..4) == 0 {
            // Holds the transaction open, so that its ids come late.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
        }
        client.seal_batch(&mut *tx, batch).await.unwrap();
        if fastrand::u8(..5) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            latest.fetch_max(jobs[0].id(), Ordering::Relaxed);
            committed.extend(jobs.iter().map(|job| job.id()));
            batches.push(batch);
        }
        if fastrand::u8(..3) == 0 {
            let victim = latest.load(Ordering::Relaxed) - fastrand::i64(..8);
            // It may have ended, or never have been committed.
            let _ = client.cancel(&pool, victim).await;
        }
    }
    (committed, batches)
}

#[tokio::test(flavor = "multi_thread")]
async fn all_committed_jobs_end_through_failures_and_restarts() {
    let database = database().await;
    let (pool, errors) = (database.pool(), Errors::default());
    let latest = Arc::<AtomicI64>::default();
    let each_second = Schedule::every("each second", Duration::from_secs(1))
        .missed(Missed::All { at_most: 1_000 })
        .job(job_of("q", "g1", "on time"));
    let mut conn = pool.acquire().await.unwrap();
    operator().set_schedule(&mut conn, each_second).await.unwrap();
    drop(conn);
    let producers: Vec<_> =
        (0..3).map(|_| tokio::spawn(produce(pool.clone(), Arc::clone(&latest)))).collect();
    let done = CancellationToken::new();
    let restarts = async |done: CancellationToken| {
        let (mut count, mut busy) = (0, 0);
        // Twice at least, however soon the producers have ended.
        while count < 2 || !done.is_cancelled() {
            busy += usize::from(!done.is_cancelled());
            let running = start(&database, &errors).await;
            // The life of a process that is deployed often.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
            let deadline = Duration::from_millis(fastrand::u64(..30));
            let report = running.shutdown(deadline).await;
            assert_eq!((report.still_running, report.lost), (0, 0), "{report:?}");
            count += 1;
        }
        busy
    };
    let producing = async {
        let (mut ids, mut batches) = (Vec::new(), Vec::new());
        for producer in producers {
            let (jobs, its_batches) = producer.await.unwrap();
            ids.extend(jobs);
            batches.extend(its_batches);
        }
        done.cancel();
        (ids, batches)
    };
    let ((ids, batches), one, other) =
        tokio::join!(producing, restarts(done.clone()), restarts(done.clone()));
    assert!(one + other > 1, "processors came and went while jobs came");

    let last = start(&database, &errors).await;
    let several = "select count(*) > 2 from seriatim.job where data #>> '{}' = 'on time'";
    eventually(pool, several, true).await;
    operator().pause_schedule(pool, "each second").await.unwrap();
    drained(pool, "q").await;
    let follow_ups = format!("data #>> '{{}}' = '{FOLLOW_UP}'");
    until_jobs(pool, &follow_ups, i64::try_from(batches.len()).unwrap()).await;
    drained(pool, "q").await;
    // Each once, and no more come.
    let waiting = Client::default().batches(pool, None, true).await.unwrap();
    assert_eq!(waiting.iter().map(|batch| batch.id).collect::<Vec<_>>(), [0; 0]);
    assert_eq!(jobs_where(pool, &follow_ups).await, i64::try_from(batches.len()).unwrap());
    let due = "select extract(epoch from max(due) - min(due))::int8 + 1, count(distinct due)
        from (select (headers->>'seriatim-scheduled-for')::timestamptz as due from seriatim.job) j";
    let due: (i64, i64) = sqlx::query_as(due).fetch_one(pool).await.unwrap();
    let made = jobs_where(pool, "data #>> '{}' = 'on time'").await;
    assert_eq!(due, (made, made), "one for each due time");
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

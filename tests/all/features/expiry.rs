//! A job that expired is not begun any more, and its group goes on; jobs that are too old are
//! ignored.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{
    Client, FailureKind, Hold, Job, JobError, JobStatus, NewJob, OutOfAttempts, QueueOptions,
    RetryPolicy, Running,
};
use sqlx::PgPool;

use crate::support::{
    Log, by_hand, database, ended, eventually, handler_with, job_of, job_when, nothing_remains,
    operator, queue, sample, serve,
};

/// Fails for the data `"bad"`.
async fn start(database: &TestDatabase, options: QueueOptions, log: &Log) -> Running {
    let run = handler_with(log.clone(), async |log, job, data| {
        log.add(format!("{} {data}", job.group().unwrap_or("-")));
        if data == json!("bad") {
            return Err(JobError::retry("it is bad"));
        }
        Ok(Value::Null)
    });
    serve(database, 4, options, run).await
}

fn is_expired(job: &Job, attempts: u32) {
    assert_eq!((job.status, job.attempts), (JobStatus::Failed, attempts), "{job:?}");
    let error = job.error.as_ref().unwrap();
    assert_eq!(error.kind, FailureKind::Expired);
    assert!(error.message.starts_with("it expired at 20"), "{}", error.message);
    assert_eq!(job.history.last().unwrap().kind, FailureKind::Expired);
}

/// Lets all expire that would in half an hour.
async fn half_an_hour_goes_by(pool: &PgPool) {
    by_hand(
        pool,
        "update seriatim.job set expires_at = now(), turn_at = now() where expires_at > now(); \
         update seriatim.queue_group set ready_at = now()",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_job_ends_without_an_attempt_and_halts_nothing() {
    let database = database().await;
    let pool = database.pool();
    let jobs = [job_of("q", "g", "late"), job_of("q", "g", "next"), NewJob::new("q", &"ungrouped")];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    by_hand(
        pool,
        "update seriatim.job set expires_at = now() - interval '1 s' where data <> '\"next\"'",
    )
    .await;
    let log = Log::default();
    let _running = start(&database, queue("q").out_of_attempts(OutOfAttempts::Halt), &log).await;
    assert_eq!(ended(pool, jobs[1].id()).await.status, JobStatus::Succeeded);
    is_expired(&ended(pool, jobs[0].id()).await, 0);
    is_expired(&ended(pool, jobs[2].id()).await, 0);
    assert_eq!(log.entries(), ["g \"next\""]);
    nothing_remains(pool).await;

    // By request it runs all the same.
    operator().retry(pool, jobs[0].id()).await.unwrap();
    assert_eq!(ended(pool, jobs[0].id()).await.status, JobStatus::Succeeded);
}

/// The group's policy for failures does not count for a job that expired.
async fn an_expired_job_does_nothing_to_a_group_that_says(policy: OutOfAttempts) {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_mins(10))]) {
        let database = database().await;
        let pool = database.pool();
        let client = Client::default();
        operator().set_group_policy(pool, "q", "g", Some(policy)).await.unwrap();
        let jobs = [job_of("q", "g", "late"), job_of("q", "g", "next"), job_of("q", "g", "bad")];
        let behind = job_of("q", "g", "behind");
        let jobs = seriatim::enqueue_many(pool, jobs.into_iter().chain([behind])).await.unwrap();
        by_hand(
            pool,
            "update seriatim.job set expires_at = now() - interval '1 s' where data = '\"late\"'; \
             update seriatim.job set max_attempts = 1",
        )
        .await;
        let log = Log::default();
        let running = start(&database, queue("q").hold(hold), &log).await;
        assert_eq!(ended(pool, jobs[1].id()).await.status, JobStatus::Succeeded, "{hold:?}");
        is_expired(&ended(pool, jobs[0].id()).await, 0);

        // It does count for one that failed.
        job_when(pool, jobs[2].id(), |job| job.status == JobStatus::Failed).await;
        running.shutdown(Duration::from_secs(5)).await;
        let halted = client.halted_groups(pool, "q").await.unwrap().len();
        let parked = client.parked_groups(pool, "q").await.unwrap().len();
        let expected = if policy == OutOfAttempts::Halt { (1, 0) } else { (0, 1) };
        assert_eq!((halted, parked), expected, "{hold:?}");
        assert_eq!(log.entries(), ["g \"next\"", "g \"bad\""], "{hold:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_job_halts_no_group_whose_own_policy_is_halt() {
    an_expired_job_does_nothing_to_a_group_that_says(OutOfAttempts::Halt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_job_parks_none_where_the_groups_policy_is_park() {
    an_expired_job_does_nothing_to_a_group_that_says(OutOfAttempts::Park).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_job_holds_its_group_no_longer_than_its_expiry() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let delayed = |job: NewJob| job.delay(Duration::from_hours(1));
    let jobs = [
        delayed(job_of("q", "g", "delayed")),
        job_of("q", "g", "next"),
        delayed(NewJob::new("q", &"delayed")),
    ];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    by_hand(
        pool,
        "update seriatim.job set expires_at = now() + interval '30 min' where run_at > now(); \
         update seriatim.job set turn_at = least(run_at, expires_at) where group_id is null",
    )
    .await;
    let _running = start(&database, queue("q"), &log).await;
    // Behind it, the group's next head is read, not before that.
    seriatim::enqueue(pool, job_of("q", "g", "last")).await.unwrap();
    eventually(
        pool,
        "select count(*) from seriatim.queue_group g join seriatim.job j using (group_id) \
         where j.expires_at = g.ready_at",
        1_i64,
    )
    .await;
    half_an_hour_goes_by(pool).await;
    assert_eq!(ended(pool, jobs[1].id()).await.status, JobStatus::Succeeded);
    for job in [jobs[0], jobs[2]] {
        let job = ended(pool, job.id()).await;
        is_expired(&job, 0);
    }
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_retry_expires_meanwhile() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let jobs = [job_of("q", "g", "bad"), job_of("q", "g", "next"), NewJob::new("q", &"bad")];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    by_hand(pool, "update seriatim.job set expires_at = now() + interval '30 min'").await;
    let hour = Duration::from_hours(1);
    let retry = RetryPolicy::new(9).base(hour).cap(hour).jitter(0.0);
    let _running = start(&database, queue("q").retry(retry), &log).await;
    // Each sleeps until it expires, which is before its retry.
    eventually(
        pool,
        "select count(*) from seriatim.job j left join seriatim.queue_group g using (group_id) \
         where j.attempts = 1 and j.expires_at = coalesce(g.ready_at, j.turn_at)",
        2_i64,
    )
    .await;
    half_an_hour_goes_by(pool).await;
    for job in [jobs[0], jobs[2]] {
        let job = ended(pool, job.id()).await;
        is_expired(&job, 1);
        assert_eq!(job.history[0].kind, FailureKind::Error);
        assert_eq!(job.history.len(), 2);
    }
    ended(pool, jobs[1].id()).await;
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_from_before_a_time_are_ignored() {
    let database = database().await;
    let pool = database.pool();
    let old = [job_of("q", "g", "old"), job_of("q", "g", "old too"), NewJob::new("q", &"old")];
    let old = seriatim::enqueue_many(pool, old).await.unwrap();
    by_hand(pool, "update seriatim.job set created_at = now() - interval '1 hour'").await;
    let new = [job_of("q", "g", "new"), NewJob::new("q", &"new")];
    let new = seriatim::enqueue_many(pool, new).await.unwrap();
    let log = Log::default();
    let options = queue("q").ignore_before(Utc::now() - TimeDelta::minutes(30));
    let _running = start(&database, options, &log).await;
    for job in new {
        assert_eq!(ended(pool, job.id()).await.status, JobStatus::Succeeded);
    }
    for job in old {
        let job = ended(pool, job.id()).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Cancelled, 0));
        let kinds: Vec<_> = job.history.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [FailureKind::Ignored]);
    }
    let mut ran = log.entries();
    ran.sort();
    assert_eq!(ran, ["- \"new\"", "g \"new\""]);
    nothing_remains(pool).await;
}

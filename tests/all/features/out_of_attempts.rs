//! A job out of attempts: its group goes on, or halts until an operator decides.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{
    Client, ControlError, FailureKind, JobError, JobStatus, OutOfAttempts, Retention, RetryPolicy,
    Running,
};
use sqlx::PgPool;

use crate::support::{
    Log, by_hand, database, ended, handler_with, job, job_of, job_when, nothing_remains, operator,
    processor, queue, serve, started, until_groups, until_jobs, value,
};

/// Fails for the data `"bad"` while it is not mended.
struct Bench {
    database: TestDatabase,
    log: Log,
}

impl Bench {
    async fn new() -> Self {
        let database = database().await;
        by_hand(database.pool(), "create table public.mended ()").await;
        let log = Log::default();
        Self { database, log }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    async fn start(&self, then: OutOfAttempts) -> Running {
        let retry = RetryPolicy::new(2).base(Duration::from_millis(1));
        started(processor(&self.database, 10).await.queue(
            queue("q").retry(retry).out_of_attempts(then),
            handler_with(self.log.clone(), async |log, job, data| {
                log.add(format!("{} {data}", job.group().unwrap_or("-")));
                let mended: i64 = sqlx::query_scalar("select count(*) from public.mended")
                    .fetch_one(job.tx().await?)
                    .await?;
                if data == json!("bad") && mended == 0 {
                    return Err(JobError::retry("it is bad"));
                }
                Ok(Value::Null)
            }),
        ))
        .await
    }

    async fn mend(&self) {
        by_hand(self.pool(), "insert into public.mended default values").await;
    }

    async fn enqueue(&self, group: &str, data: &[&str]) -> Vec<i64> {
        let jobs = data.iter().map(|data| job_of("q", group, *data));
        let jobs = seriatim::enqueue_many(self.pool(), jobs).await.unwrap();
        jobs.iter().map(|job| job.id()).collect()
    }

    /// A halted group: its first job is bad, two wait behind it.
    async fn halted(&self, group: &str) -> Vec<i64> {
        let ids = self.enqueue(group, &["bad", "b", "c"]).await;
        job_when(self.pool(), ids[0], |job| job.status == JobStatus::Failed).await;
        ids
    }

    async fn groups(&self) -> Vec<String> {
        let halted = Client::default().halted_groups(self.pool(), "q").await;
        halted.unwrap().into_iter().map(|g| g.group).collect()
    }

    fn ran(&self, group: &str) -> Vec<String> {
        let mut entries = self.log.entries();
        entries.retain(|entry| entry.split(' ').next() == Some(group));
        entries
    }
}

fn client() -> Client {
    Client::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_the_group_goes_on_behind_a_dead_letter() {
    let bench = Bench::new().await;
    let running = bench.start(OutOfAttempts::default()).await;
    let ids = bench.enqueue("g", &["a", "bad", "c"]).await;
    assert_eq!(ended(bench.pool(), ids[2]).await.status, JobStatus::Succeeded);
    let dead = job(bench.pool(), ids[1]).await;
    assert_eq!((dead.status, dead.attempts), (JobStatus::Failed, 2));
    assert_eq!(bench.ran("g"), ["g \"a\"", "g \"bad\"", "g \"bad\"", "g \"c\""]);
    assert!(bench.groups().await.is_empty());
    nothing_remains(bench.pool()).await;

    // The dead one keeps its id, and so runs before what comes now.
    bench.mend().await;
    let blocked = bench.enqueue("h", &["a"]).await;
    ended(bench.pool(), blocked[0]).await;
    let retried = operator().retry(bench.pool(), ids[1]).await.unwrap();
    assert_eq!(retried.overtaken, 1, "c has run");
    let retried = ended(bench.pool(), ids[1]).await;
    assert_eq!((retried.status, retried.attempts), (JobStatus::Succeeded, 3));
    assert_eq!(retried.history.len(), 2, "its past stays readable");
    nothing_remains(bench.pool()).await;
    running.shutdown(Duration::from_secs(5)).await;
    bench.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_group_stays_so_through_enqueues_and_restarts() {
    let bench = Bench::new().await;
    let running = bench.start(OutOfAttempts::Halt).await;
    let first = bench.halted("g").await;
    let second = bench.halted("h").await;
    let halted = client().halted_groups(bench.pool(), "q").await.unwrap();
    assert_eq!(bench.groups().await, ["g", "h"], "the longest halted first");
    for (group, ids) in halted.iter().zip([&first, &second]) {
        assert_eq!(group.queue, "q");
        assert_eq!(group.job, Some(ids[0]));
        assert_eq!(group.reason.as_deref(), Some("it is bad"));
        let ended = job(bench.pool(), ids[0]).await.finished_at.unwrap();
        assert!((group.since - ended).abs().as_seconds_f64() < 1.0);
        assert!(group.age > Duration::ZERO && group.age < Duration::from_secs(30));
    }
    assert!(halted[0].age > halted[1].age);

    running.shutdown(Duration::from_secs(5)).await;
    let later = bench.enqueue("g", &["d"]).await;
    let running = bench.start(OutOfAttempts::Halt).await;
    let latest = bench.enqueue("g", &["e"]).await;
    until_jobs(bench.pool(), "flagged", 0).await;
    // Others go on, long enough for a group that was woken to have run.
    for _ in 0..10 {
        let other = bench.enqueue("other", &["a"]).await;
        ended(bench.pool(), other[0]).await;
    }
    assert_eq!(bench.ran("g").len(), 2, "nothing behind the bad one");
    let waiting = client().group_jobs(bench.pool(), "q", "g", 10).await;
    let waiting: Vec<i64> = waiting.unwrap().iter().map(|job| job.id).collect();
    assert_eq!(waiting, [first[1], first[2], later[0], latest[0]]);
    assert_eq!(bench.groups().await, ["g", "h"]);

    operator().unhalt_group(bench.pool(), "q", "g").await.unwrap();
    ended(bench.pool(), latest[0]).await;
    assert_eq!(bench.ran("g")[2..], ["g \"b\"", "g \"c\"", "g \"d\"", "g \"e\""]);
    assert_eq!(
        job(bench.pool(), first[0]).await.status,
        JobStatus::Failed,
        "the bad one stays a dead letter"
    );
    assert_eq!(bench.groups().await, ["h"]);
    running.shutdown(Duration::from_secs(5)).await;
    bench.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_group_goes_on_by_retry_or_skip() {
    let bench = Bench::new().await;
    let running = bench.start(OutOfAttempts::Halt).await;

    // Retried while it is still bad, it halts the group again, after all its attempts.
    let retried = bench.halted("retried").await;
    let report = operator().retry(bench.pool(), retried[0]).await.unwrap();
    assert_eq!(report.overtaken, 0);
    let dead = job_when(bench.pool(), retried[0], |job| {
        job.status == JobStatus::Failed && job.attempts == 4
    })
    .await;
    assert_eq!(dead.error.unwrap().attempt, 4);
    assert_eq!(bench.groups().await, ["retried"]);

    let skipped = bench.halted("skipped").await;
    operator().skip(bench.pool(), skipped[0]).await.unwrap();
    ended(bench.pool(), skipped[2]).await;
    let dead = job(bench.pool(), skipped[0]).await;
    assert_eq!(dead.status, JobStatus::Failed);
    assert_eq!(dead.error.unwrap().kind, FailureKind::Error, "why it died stays readable");

    bench.mend().await;
    operator().retry(bench.pool(), retried[0]).await.unwrap();
    ended(bench.pool(), retried[2]).await;
    let ran = bench.ran("retried");
    assert_eq!(ran[4..], ["retried \"bad\"", "retried \"b\"", "retried \"c\""]);
    assert!(bench.groups().await.is_empty());
    nothing_remains(bench.pool()).await;
    running.shutdown(Duration::from_secs(5)).await;
    bench.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skip_is_of_the_job_that_stops_its_group() {
    let bench = Bench::new().await;
    let running = bench.start(OutOfAttempts::Halt).await;
    let ids = bench.halted("g").await;
    let refused = operator().skip(bench.pool(), ids[1]).await.unwrap_err();
    let by = ids[0];
    assert!(matches!(refused, ControlError::HaltedBy { by: found, .. } if found == by));
    assert!(refused.to_string().contains(&format!("skip {by} ")), "{refused}");
    assert_eq!(bench.groups().await, ["g"], "it was not b that halted it");
    assert_eq!(job(bench.pool(), ids[1]).await.status, JobStatus::Queued);
    operator().skip(bench.pool(), by).await.unwrap();
    ended(bench.pool(), ids[2]).await;

    // The delayed head of a sleeping group: what waits behind it is woken.
    let head = job_of("q", "sleeper", "a").delay(Duration::from_hours(1));
    let mut jobs = Vec::new();
    for job in [head, job_of("q", "sleeper", "b")] {
        jobs.push(seriatim::enqueue(bench.pool(), job).await.unwrap());
    }
    until_groups(bench.pool(), "ready_at > now() + interval '1 min'", 1).await;
    operator().skip(bench.pool(), jobs[0].id()).await.unwrap();
    let skipped = job(bench.pool(), jobs[0].id()).await;
    assert_eq!(skipped.status, JobStatus::Failed);
    assert_eq!(skipped.error.unwrap().kind, FailureKind::Skipped);
    assert_eq!(skipped.history[0].kind, FailureKind::Skipped);
    ended(bench.pool(), jobs[1].id()).await;
    nothing_remains(bench.pool()).await;
    running.shutdown(Duration::from_secs(5)).await;
    bench.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_take_part_in_the_callers_transaction() {
    let bench = Bench::new().await;
    let running = bench.start(OutOfAttempts::Halt).await;
    for request in ["resume", "retry", "skip"] {
        let ids = bench.halted(request).await;
        for commits in [false, true] {
            let mut tx = bench.pool().begin().await.unwrap();
            match request {
                "resume" => operator().unhalt_group(&mut *tx, "q", request).await.unwrap(),
                "skip" => operator().skip(&mut *tx, ids[0]).await.unwrap(),
                _ => {
                    operator().retry(&mut *tx, ids[0]).await.unwrap();
                    // In the transaction it is queued again already.
                    let again = operator().retry(&mut *tx, ids[0]).await;
                    assert!(matches!(again, Err(ControlError::WrongStatus { .. })));
                }
            }
            // No other session sees it, and other groups go on meanwhile.
            assert_eq!(bench.groups().await, [request]);
            let other = bench.enqueue("other", &["a"]).await;
            ended(bench.pool(), other[0]).await;
            if commits {
                bench.mend().await;
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
                assert_eq!(bench.groups().await, [request]);
            }
        }
        ended(bench.pool(), ids[2]).await;
        assert!(bench.groups().await.is_empty());
        by_hand(bench.pool(), "truncate public.mended").await;
    }
    nothing_remains(bench.pool()).await;
    running.shutdown(Duration::from_secs(5)).await;
    bench.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_in_words() {
    let bench = Bench::new().await;
    let pool = bench.pool();
    let running = bench.start(OutOfAttempts::Halt).await;
    for refused in [
        operator().retry(pool, 404).await.map(drop),
        operator().skip(pool, 404).await,
        client().cancel(pool, 404).await.map(drop),
    ] {
        assert!(matches!(refused, Err(ControlError::NoSuchJob { id: 404 })), "{refused:?}");
    }
    let ids = bench.halted("g").await;
    for (queue, group) in [("q", "free"), ("other", "g")] {
        let refused = operator().unhalt_group(pool, queue, group).await.unwrap_err();
        assert!(matches!(refused, ControlError::NotHalted { .. }));
        assert!(refused.to_string().contains(group), "{refused}");
    }

    let done = bench.enqueue("done", &["a"]).await[0];
    ended(pool, done).await;
    for (refused, advice) in [
        (operator().retry(pool, ids[1]).await.map(drop), "is queued"),
        (operator().retry(pool, done).await.map(drop), "is succeeded"),
        (operator().skip(pool, done).await, "is succeeded"),
        (client().cancel(pool, done).await.map(drop), "is succeeded"),
        (client().cancel(pool, ids[0]).await.map(drop), "is failed"),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ControlError::WrongStatus { .. }));
        assert!(refused.to_string().contains(advice), "{refused}");
    }

    let mut other = pool.begin().await.unwrap();
    sqlx::query("select 1 from seriatim.job where id = any($1) for update")
        .bind(&ids)
        .execute(&mut *other)
        .await
        .unwrap();
    for refused in
        [operator().retry(pool, ids[0]).await.map(drop), operator().skip(pool, ids[0]).await]
    {
        assert!(matches!(refused, Err(ControlError::Busy { .. })), "{refused:?}");
    }
    other.rollback().await.unwrap();
    operator().skip(pool, ids[0]).await.unwrap();
    running.shutdown(Duration::from_secs(5)).await;
    bench.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_neither_skipped_nor_retried() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let _running = serve(
        &database,
        10,
        queue("q").keep_failed(Retention::Never),
        handler_with(log.clone(), async |log, job, _| {
            log.add("started");
            let cancelled = job.cancelled();
            cancelled.await;
            Err(JobError::fail("stopped"))
        }),
    )
    .await;
    let id = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    log.wait_for(1).await;
    let skipped = operator().skip(pool, id).await.unwrap_err();
    let retried = operator().retry(pool, id).await.unwrap_err();
    for refused in [&skipped, &retried] {
        assert!(refused.to_string().contains("is started"), "{refused}");
    }
    assert!(skipped.to_string().contains("cancel"), "{skipped}");
    client().cancel(pool, id).await.unwrap();
    assert_eq!(ended(pool, id).await.status, JobStatus::Cancelled);
    let requests: i64 = value(pool, "select count(*) from seriatim.cancel_request").await;
    assert_eq!(requests, 0);
}

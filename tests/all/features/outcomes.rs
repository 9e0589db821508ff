//! Every way in which a run can end, from the handler to what is stored about it.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::{
    ActiveJob, FailureKind, Job, JobError, JobHandler, JobStatus, NewJob, RetryPolicy, async_trait,
};
use sqlx::PgPool;

use crate::support::{
    Errors, Log, by_hand, database, drained, ended, handler, handler_with, job_of, job_when,
    nothing_remains, processor, queue, serve, started, value,
};

#[derive(Debug, thiserror::Error)]
#[error("the posting failed")]
struct Outer(#[from] Middle);

#[derive(Debug, thiserror::Error)]
#[error("the account is closed")]
struct Middle(#[from] std::num::ParseIntError);

/// Does what the data says.
async fn act(job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    match data["do"].as_str().unwrap_or_default() {
        "double" => Ok(json!({ "doubled": data["n"].as_i64().unwrap() * 2 })),
        "nothing" => Ok(Value::Null),
        "chain" => Err(Outer(Middle("x".parse::<i32>().unwrap_err())))?,
        "parse" => Ok(json!("seven".parse::<i32>()?)),
        "words" => Err(JobError::retry("no luck\0 today")),
        "give up" => Err(JobError::fail("no such account")),
        "later" => Err(JobError::retry_after("busy", Duration::from_secs(77))),
        "panic" => panic!("boom"),
        "panic with words" => panic!("boom {}", job.id()),
        "panic with a number" => std::panic::panic_any(7),
        "hang" => std::future::pending().await,
        "nul" => Ok(json!({ "name": "a\0b" })),
        "nul in a key" => Ok(json!({ "a\0b": 1 })),
        "too much" => Ok(json!("x".repeat(1024 * 1024 - 1))),
        "much" => Ok(json!("x".repeat(1024 * 1024 - 2))),
        other => panic!("what is {other:?}?"),
    }
}

fn failure(job: &Job) -> (FailureKind, &str, u32) {
    let failure = job.error.as_ref().unwrap();
    (failure.kind, failure.message.as_str(), failure.attempt)
}

/// Enqueues one job for each act, each in a group of its own, with one attempt.
async fn one_of_each(pool: &PgPool, acts: &[&str]) -> Vec<Job> {
    let jobs =
        acts.iter().map(|act| job_of("q", act, json!({ "do": act, "n": 21 })).max_attempts(1));
    let enqueued = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let mut jobs = Vec::new();
    for job in enqueued {
        jobs.push(ended(pool, job.id()).await);
    }
    jobs
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_of_a_handler_is_stored_in_its_own_words() {
    let database = database().await;
    let pool = database.pool();
    let _running =
        serve(&database, 10, queue("q"), handler(async |job, data| act(job, data).await)).await;

    let jobs = one_of_each(pool, &["double", "nothing"]).await;
    for (job, result) in jobs.iter().zip([json!({ "doubled": 42 }), Value::Null]) {
        assert_eq!(job.status, JobStatus::Succeeded);
        assert_eq!(job.result, Some(result));
        assert_eq!((&job.error, job.attempts), (&None, 1));
        assert!(job.history.is_empty());
        assert!(job.finished_at >= job.last_started_at && job.last_started_at.is_some());
    }

    let expected = [
        ("chain", FailureKind::Error, "the posting failed"),
        ("parse", FailureKind::Error, "invalid digit found in string"),
        ("words", FailureKind::Error, "no luck\u{fffd} today"),
        ("give up", FailureKind::Permanent, "no such account"),
        ("later", FailureKind::Error, "busy"),
        ("panic", FailureKind::Panic, "boom"),
        ("panic with a number", FailureKind::Panic, "a panic without words"),
    ];
    let jobs = one_of_each(pool, &expected.map(|(act, ..)| act)).await;
    for (job, (act, kind, message)) in jobs.iter().zip(expected) {
        assert_eq!(job.status, JobStatus::Failed, "{act}");
        assert_eq!(failure(job), (kind, message, 1), "{act}");
        assert_eq!((&job.result, job.attempts), (&None, 1), "{act}");
        let [entry] = job.history.as_slice() else { panic!("{act}: {:?}", job.history) };
        assert_eq!(
            (entry.attempt, entry.kind, entry.message.as_deref()),
            (1, kind, Some(message)),
            "{act}"
        );
        assert_eq!(entry.started_at, job.last_started_at, "{act}");
    }
    let chain = &jobs[0].error.as_ref().unwrap().chain;
    assert_eq!(chain[..], ["the account is closed", "invalid digit found in string"]);

    let jobs = one_of_each(pool, &["panic with words", "nul", "nul in a key"]).await;
    assert_eq!(failure(&jobs[0]).1, format!("boom {}", jobs[0].id));
    for job in &jobs[1..] {
        assert_eq!(failure(job).0, FailureKind::Output);
        assert!(failure(job).1.contains("NUL"), "{job:?}");
    }

    // As much as data may have, and a byte more.
    let jobs = one_of_each(pool, &["much", "too much"]).await;
    assert_eq!(jobs[0].status, JobStatus::Succeeded);
    let words = "the output has 1048577 bytes, at most 1048576 are allowed";
    assert!(failure(&jobs[1]).1.starts_with(words), "{:?}", jobs[1]);
    assert_eq!(failure(&jobs[1]).0, FailureKind::Output);
    nothing_remains(pool).await;
}

/// Wants a number and gives what JSON has no form for.
struct Typed(Log);

#[async_trait]
impl JobHandler for Typed {
    type Data = u8;
    type Output = HashMap<(u8, u8), u8>;
    type Error = std::io::Error;

    async fn handle(&self, _: &mut ActiveJob, n: u8) -> Result<Self::Output, Self::Error> {
        self.0.add(n.to_string());
        match n {
            0 => Err(std::io::Error::other("of the user's own type")),
            n => Ok(HashMap::from([((n, n), n)])),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_decode_or_encode_is_a_failed_attempt() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let _running =
        serve(&database, 10, queue("q").retry(RetryPolicy::new(1)), Typed(log.clone())).await;
    let expected = [
        (json!("seven"), FailureKind::Data, "expected u8"),
        (json!(1000), FailureKind::Data, "expected u8"),
        (json!(7), FailureKind::Output, "key must be a string"),
        (json!(0), FailureKind::Error, "of the user's own type"),
    ];
    for (data, kind, message) in expected {
        let id = seriatim::enqueue(pool, NewJob::new("q", &data)).await.unwrap().id();
        let job = ended(pool, id).await;
        assert_eq!(job.status, JobStatus::Failed);
        assert_eq!(failure(&job).0, kind, "{job:?}");
        assert!(failure(&job).1.contains(message), "{job:?}");
    }
    assert_eq!(log.entries(), ["7", "0"], "undecodable data reaches no handler");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_the_queues_or_the_jobs_and_twenty_are_kept() {
    let database = database().await;
    let pool = database.pool();
    let retry = RetryPolicy::new(3).base(Duration::from_millis(1));
    let log = Log::default();
    let _running = serve(
        &database,
        10,
        queue("q").retry(retry.cap(Duration::from_millis(1))),
        handler_with(log.clone(), async |log, job, _| {
            log.add(format!(
                "{} {} of {}",
                job.group().unwrap(),
                job.attempt(),
                job.max_attempts()
            ));
            Err(JobError::retry("no luck"))
        }),
    )
    .await;
    let jobs = [
        job_of("q", "the queue's", 1),
        job_of("q", "fewer", 1).max_attempts(1),
        job_of("q", "more", 1).max_attempts(24),
    ];
    let enqueued = seriatim::enqueue_many(pool, jobs).await.unwrap();
    for (enqueued, (group, attempts)) in
        enqueued.iter().zip([("the queue's", 3), ("fewer", 1), ("more", 24)])
    {
        let job = ended(pool, enqueued.id()).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Failed, attempts));
        assert_eq!(failure(&job).2, attempts);
        let first = attempts.saturating_sub(Job::HISTORY_LIMIT) + 1;
        let kept: Vec<u32> = job.history.iter().map(|entry| entry.attempt).collect();
        assert_eq!(kept, (first..=attempts).collect::<Vec<_>>());
        for pair in job.history.windows(2) {
            assert!(pair[0].started_at <= Some(pair[0].finished_at));
            assert!(Some(pair[0].finished_at) <= pair[1].started_at);
        }
        let runs: Vec<String> =
            (1..=attempts).map(|n| format!("{group} {n} of {attempts}")).collect();
        let mut entries = log.entries();
        entries.retain(|entry| entry.starts_with(group));
        assert_eq!(entries, runs);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_as_the_policy_or_the_handler_says() {
    let database = database().await;
    let pool = database.pool();
    let policy = RetryPolicy::new(9)
        .base(Duration::from_secs(100))
        .factor(3.0)
        .cap(Duration::from_secs(500));
    let exact = policy.clone().jitter(0.0);
    let _running = started(
        processor(&database, 10)
            .await
            .queue(queue("q").retry(exact), handler(async |job, data| act(job, data).await))
            .queue(
                queue("jittered").retry(policy.jitter(0.5)),
                handler(async |job, data| act(job, data).await),
            ),
    )
    .await;
    let enqueue = async |queue, act| {
        let job = job_of(queue, act, json!({ "do": act }));
        seriatim::enqueue(pool, job).await.unwrap().id()
    };
    // The wait that is seen after an attempt, in seconds.
    let wait = async |id, attempt: usize| {
        let job = job_when(pool, id, |job| {
            job.history.len() == attempt && job.status == JobStatus::Queued
        })
        .await;
        let failed_at = job.history[attempt - 1].finished_at;
        job.run_at.signed_duration_since(failed_at).as_seconds_f64()
    };
    let id = enqueue("q", "parse").await;
    for (attempt, expected) in [(1, 100.0), (2, 300.0), (3, 500.0), (4, 500.0)] {
        let seen = wait(id, attempt).await;
        assert!((seen - expected).abs() < 1.0, "{seen} after {attempt}");
        by_hand(pool, "update seriatim.job set run_at = now(), flagged = true").await;
    }
    let seen = wait(enqueue("q", "later").await, 1).await;
    assert!((seen - 77.0).abs() < 1.0, "{seen}");
    let seen = wait(enqueue("jittered", "panic").await, 1).await;
    assert!((49.0..101.0).contains(&seen), "{seen}");
    let id = enqueue("jittered", "give up").await;
    assert_eq!(ended(pool, id).await.attempts, 1, "it is not tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_out_of_time_is_told_and_then_dropped() {
    struct Dropped(Log);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.add("dropped");
        }
    }
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let options = queue("q").timeout(Duration::from_secs(1));
    let _running = serve(
        &database,
        10,
        options.retry(RetryPolicy::new(1)),
        handler_with(log.clone(), async |log, job, data| {
            let dropped = Dropped(log.clone());
            if data == json!("slow") {
                // Work that takes longer than the queue's timeout and less than the job's.
                tokio::time::sleep(Duration::from_millis(1_300)).await;
                return Ok(json!("done"));
            }
            sqlx::query("select 1").execute(job.tx().await?).await?;
            job.cancelled().await;
            dropped.0.add("told");
            std::future::pending().await
        }),
    )
    .await;
    let slow = job_of("q", "slow", "slow").timeout(Duration::from_secs(20));
    let slow = seriatim::enqueue(pool, slow).await.unwrap().id();
    assert_eq!(ended(pool, slow).await.result, Some(json!("done")));

    let hangs = job_of("q", "hangs", "hangs");
    let hangs = seriatim::enqueue(pool, hangs).await.unwrap().id();
    let job = ended(pool, hangs).await;
    let (kind, message, _) = failure(&job);
    assert_eq!(kind, FailureKind::Timeout);
    assert!(message.contains("1s"), "{message}");
    assert_eq!(log.entries(), ["dropped", "told", "dropped"]);

    let own = job_of("q", "own", "hangs").timeout(Duration::from_millis(30));
    let own = seriatim::enqueue(pool, own).await.unwrap().id();
    let job = ended(pool, own).await;
    assert!(failure(&job).1.contains("30ms"), "{job:?}");
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_is_an_outcome_and_the_job_runs_again() {
    let database = database().await;
    let pool = database.pool();
    let (log, errors) = (Log::default(), Errors::default());
    let builder = errors.of(processor(&database, 10).await);
    let _running = started(builder.queue(
        queue("q"),
        handler_with((log.clone(), pool.clone()), async |(log, pool), job, data| {
            let pid: i32 =
                sqlx::query_scalar("select pg_backend_pid()").fetch_one(job.tx().await?).await?;
            if job.attempt() == 1 {
                let killed: bool =
                    value(&pool, format!("select pg_terminate_backend({pid})")).await;
                assert!(killed);
                if data == json!("waits") {
                    job.cancelled().await;
                    log.add("told");
                }
            }
            Ok(json!(job.attempt()))
        }),
    ))
    .await;
    for data in ["waits", "returns"] {
        let id = seriatim::enqueue(pool, job_of("q", data, data)).await.unwrap().id();
        let job = ended(pool, id).await;
        assert_eq!(job.result, Some(json!(2)), "{job:?}");
        assert_eq!(job.history[0].kind, FailureKind::ConnectionLost);
        assert_eq!(job.error, None, "a success leaves no error");
    }
    assert_eq!(log.entries(), ["told"]);
    assert_eq!(errors.named("HoldLost").len(), 2);
    drained(pool, "q").await;
    nothing_remains(pool).await;
}

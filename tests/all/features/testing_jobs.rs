//! The helpers that users have in their own tests.

use std::time::Duration;

use serde_json::json;
use seriatim::layer::{Ended, Layer, Next};
use seriatim::testing::{Jobs, TestJob, WaitError};
use seriatim::{ActiveJob, Hold, JobError, JobStatus, NewJob, Processor, RetryPolicy, async_trait};

use crate::support::{Log, database, enqueue, handler, handler_with, operator, queue, serve};

#[tokio::test]
async fn jobs_are_listed_run_one_by_one_and_drained() {
    let database = database().await;
    let jobs = Jobs::new(database.pool());
    for n in 1..=5 {
        enqueue(database.pool(), "q", "g", n).await;
    }
    let listed = jobs.enqueued("q").await.unwrap();
    assert_eq!(listed.iter().map(|job| job.data.clone()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);

    let double = || handler(async |_, data| Ok(json!(data.as_i64().unwrap() * 2)));
    let ran = jobs.run_next(queue("q"), double()).await.unwrap().unwrap();
    assert_eq!((ran.status, ran.result), (JobStatus::Succeeded, Some(json!(2))));
    assert_eq!(jobs.drain(queue("q"), double()).await.unwrap(), 4);
    assert!(jobs.run_next(queue("q"), double()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_drain_leaves_what_waits_for_a_retry_and_what_is_behind_it() {
    let database = database().await;
    let jobs = Jobs::new(database.pool());
    enqueue(database.pool(), "q", "g", 1).await;
    enqueue(database.pool(), "q", "g", 2).await;
    let later = handler(async |_, _| Err(JobError::retry_after("later", Duration::from_hours(1))));
    assert_eq!(jobs.drain(queue("q"), later).await.unwrap(), 1);
    let left = jobs.enqueued("q").await.unwrap();
    assert_eq!(left.iter().map(|job| job.attempts).collect::<Vec<_>>(), [1, 0]);

    let waited = jobs.wait_until_idle("q", Duration::ZERO).await;
    assert!(
        matches!(&waited, Err(WaitError::NotIdle { counts, .. }) if counts.delayed == 1 && counts.queued == 1),
        "{waited:?}"
    );
}

#[tokio::test]
async fn a_drain_may_ignore_delays_retries_and_snoozes() {
    let database = database().await;
    let (jobs, pool) = (Jobs::new(database.pool()), database.pool());
    let hour = Duration::from_hours(1);
    for data in [json!("fails"), json!("behind"), json!("snoozes")] {
        seriatim::enqueue(pool, NewJob::new("q", &data).group("g").delay(hour)).await.unwrap();
    }
    let run = handler(async |job, data| match data.as_str() {
        Some("fails") => Err(JobError::retry_after("no", Duration::from_hours(1))),
        Some("snoozes") if job.snoozes() < 3 => Err(JobError::snooze(Duration::from_hours(1))),
        _ => Ok(data),
    });
    let options = queue("q").retry(RetryPolicy::new(4));
    assert_eq!(jobs.drain_ignoring_delays(options, run).await.unwrap(), 4 + 1 + 4);
    let done = jobs.enqueued("q").await.unwrap();
    let ended: Vec<_> = done.iter().map(|job| (job.status, job.attempts, job.snoozes)).collect();
    let (failed, succeeded) = (JobStatus::Failed, JobStatus::Succeeded);
    assert_eq!(ended, [(failed, 4, 0), (succeeded, 1, 0), (succeeded, 4, 3)]);
    // Nothing that a paused group has waits for its time.
    operator().pause_group(pool, "q", "g").await.unwrap();
    enqueue(pool, "q", "g", 1).await;
    let run = handler(async |_, data| Ok(data));
    assert_eq!(jobs.drain_ignoring_delays(queue("q"), run).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_can_wait_until_a_processor_has_done_everything() {
    let database = database().await;
    let jobs = Jobs::new(database.pool());
    for n in 0..20 {
        enqueue(database.pool(), "q", &format!("g{}", n % 4), n).await;
    }
    let _running = serve(&database, 4, queue("q"), handler(async |_, data| Ok(data))).await;
    jobs.wait_until_idle("q", Duration::from_secs(30)).await.unwrap();
    let done = jobs.enqueued("q").await.unwrap();
    assert!(done.iter().all(|job| job.status == JobStatus::Succeeded));
}

/// Writes down the attempts that come by.
struct Watch(Log);

#[async_trait]
impl Layer for Watch {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        self.0.add(format!("{} attempt {}", job.queue(), job.attempt()));
        next.run(job).await
    }
}

#[tokio::test]
async fn a_built_processor_is_drained_with_its_layers_and_options() {
    let (database, log) = (database().await, Log::default());
    let pool = database.pool();
    let pass_on = handler(async |job, data| {
        job.enqueue(NewJob::new("b", &data).group("g")).await?;
        Ok(data)
    });
    let fails_once = handler_with(log.clone(), async |log, job, data| {
        log.add("b");
        if job.attempt() == 1 { Err(JobError::retry("no")) } else { Ok(data) }
    });
    let events = log.clone();
    let hour = RetryPolicy::new(2).base(Duration::from_hours(1));
    let processor = Processor::builder(pool.clone())
        // Drained first: its job comes from the other queue.
        .queue(queue("b").hold(Hold::Lease(Duration::from_secs(30))).retry(hour), fails_once)
        .queue(queue("a"), pass_on)
        .layer(Watch(log.clone()))
        .on_event(move |event| events.add(format!("{} {}", event.queue, event.outcome.as_str())))
        .build()
        .unwrap();
    assert_eq!(processor.drain().await.unwrap(), 0);
    enqueue(pool, "a", "g", 1).await;
    assert_eq!(processor.drain().await.unwrap(), 2);
    let first = ["a attempt 1", "a succeeded", "b attempt 1", "b", "b retried"];
    assert_eq!(log.entries(), first);
    assert_eq!(processor.drain().await.unwrap(), 0, "the retry is in an hour");

    assert_eq!(processor.drain_ignoring_delays().await.unwrap(), 1);
    assert_eq!(log.entries()[first.len()..], ["b attempt 2", "b", "b succeeded"]);
    let jobs = Jobs::new(pool).enqueued("b").await.unwrap();
    assert_eq!((jobs[0].status, jobs[0].attempts), (JobStatus::Succeeded, 2));

    // It can be started afterwards.
    let running = processor.start().await.unwrap();
    enqueue(pool, "a", "g", 2).await;
    Jobs::new(pool).wait_until_idle("a", Duration::from_secs(30)).await.unwrap();
    running.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_job_ends_without_a_database_as_with_one() {
    let database = database().await;
    let jobs = Jobs::new(database.pool());
    let options = || queue("q").retry(RetryPolicy::new(2).jitter(0.0)).max_snoozes(0);
    for data in [json!("fail"), json!("retry"), json!("snooze"), json!("panic"), json!("succeed")] {
        let run = || {
            handler(async |_, data| match data.as_str() {
                Some("fail") => Err(JobError::fail("never")),
                Some("retry") => Err(JobError::retry_after("no", Duration::from_hours(1))),
                Some("snooze") => Err(JobError::snooze(Duration::from_hours(1))),
                Some("panic") => panic!("boom"),
                _ => Ok(data),
            })
        };
        let new = NewJob::new("q", &data).group(data.to_string());
        seriatim::enqueue(database.pool(), new.clone()).await.unwrap();
        let real = jobs.run_next(options(), run()).await.unwrap().unwrap();
        let test = TestJob::new(new).options(options()).run(run()).await.unwrap();
        assert_eq!((&test.output, &test.failure), (&real.result, &real.error), "{data}");
        assert_eq!(test.again_in.is_some(), real.status == JobStatus::Queued, "{data}");
    }
}

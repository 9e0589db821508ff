//! Looking at queues, groups and jobs.

use std::time::Duration;

use serde_json::json;
use seriatim::admin::QueueCounts;
use seriatim::{Client, JobError, JobStatus, NewJob, Processor};

use crate::support::{
    Log, by_hand, database, drained, ended, enqueue, handler, handler_with, job, job_of, operator,
    queue, serve, started,
};

#[tokio::test(flavor = "multi_thread")]
async fn counts_tell_the_states_apart() {
    let database = database().await;
    let (pool, client, log) = (database.pool(), Client::default(), Log::default());
    let counts = async |queue: &str| client.counts(pool, queue).await.unwrap();
    assert_eq!(counts("q").await, QueueCounts::default());
    let seen = log.clone();
    let running = serve(
        &database,
        10,
        // The job behind one that runs waits, and is not of its turn.
        queue("q").time_slice(Duration::ZERO),
        handler_with(seen, async |seen, job, data| {
            let cancelled = job.cancelled();
            match data.as_str() {
                Some("fails") => return Err(JobError::fail("as asked")),
                Some("runs") => {
                    seen.add("runs");
                    cancelled.await;
                }
                _ => {}
            }
            Ok(data)
        }),
    )
    .await;
    let hour = Duration::from_hours(1);
    let jobs = [
        job_of("q", "a", "fails"),
        job_of("q", "a", 1),
        job_of("q", "a", 2),
        job_of("q", "b", "runs"),
        job_of("q", "b", 3),
        job_of("q", "b", 4).delay(hour),
        job_of("q", "c", 5).delay(hour),
        NewJob::new("q", &6).delay(hour),
        NewJob::new("another", &7),
    ];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    ended(pool, jobs[2].id()).await;
    log.wait_for(1).await;
    client.cancel(pool, jobs[6].id()).await.unwrap();
    let seen = counts("q").await;
    assert_eq!((seen.queued, seen.delayed, seen.started), (1, 2, 1));
    assert_eq!((seen.succeeded, seen.failed, seen.cancelled), (2, 1, 1));
    assert_eq!(seen.unfinished(), 4);
    assert_eq!(counts("another").await.queued, 1);
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn finished_jobs_are_counted_up_to_a_limit() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "insert into seriatim.job (queue, status, data, finished_at) \
         select 'q', 'succeeded', 'null', now() from generate_series(1, 10050);
         insert into seriatim.job (queue, status, data, run_at) \
         select 'q', 'queued', 'null', now() from generate_series(1, 10050)",
    )
    .await;
    let counts = Client::default().counts(pool, "q").await.unwrap();
    assert_eq!(counts.succeeded, QueueCounts::FINISHED_LIMIT);
    assert_eq!(counts.queued, 10_050, "unfinished ones are counted exactly");
}

#[tokio::test]
async fn a_job_is_shown_as_it_was_enqueued() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    assert_eq!(client.job(pool, 404).await.unwrap(), None);
    let data = json!({ "b": [1, 2.5, null], "a": "ü" });
    let new = NewJob::new("q", &data).group("g").max_attempts(7).delay(Duration::from_mins(1));
    let mut tx = pool.begin().await.unwrap();
    let id = seriatim::enqueue(&mut *tx, new).await.unwrap().id();
    let seen = client.job(&mut *tx, id).await.unwrap();
    let seen = seen.expect("its own transaction sees it");
    assert_eq!(client.job(pool, id).await.unwrap(), None, "nobody else does");
    tx.commit().await.unwrap();
    assert_eq!(job(pool, id).await, seen);
    assert_eq!((seen.id, seen.queue.as_str()), (id, "q"));
    assert_eq!(seen.group.as_deref(), Some("g"));
    assert_eq!((seen.status, seen.attempts), (JobStatus::Queued, 0));
    assert_eq!((seen.data, seen.max_attempts), (data, Some(7)));
    assert_eq!((seen.result, seen.error), (None, None));
    assert!(seen.history.is_empty());
    assert_eq!((seen.last_started_at, seen.finished_at), (None, None));
    let delay = seen.run_at.signed_duration_since(seen.created_at);
    assert!((60.0..90.0).contains(&delay.as_seconds_f64()), "{delay}");
}

#[tokio::test]
async fn the_jobs_of_a_group_come_in_the_order_in_which_they_will_run() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let jobs = (0..5).map(|n| {
        // Not the order of their times.
        job_of("q", "g", n).delay(Duration::from_secs(100 - n))
    });
    let mut ids: Vec<i64> =
        seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect();
    for other in [job_of("q", "h", 1), job_of("r", "g", 1), NewJob::new("q", &1)] {
        seriatim::enqueue(pool, other).await.unwrap();
    }
    let listed = async |most| -> Vec<i64> {
        let jobs = client.group_jobs(pool, "q", "g", most).await.unwrap();
        jobs.iter().map(|job| job.id).collect()
    };
    assert_eq!(listed(100).await, ids);
    assert_eq!(listed(u32::MAX).await, ids);
    assert_eq!(listed(2).await, ids[..2]);
    assert!(listed(0).await.is_empty());
    client.cancel(pool, ids[1]).await.unwrap();
    operator().skip(pool, ids[3]).await.unwrap();
    client.cancel(pool, ids[0]).await.unwrap();
    operator().retry(pool, ids[0]).await.unwrap();
    ids.remove(3);
    ids.remove(1);
    assert_eq!(listed(100).await, ids);
}

/// The jobs of a group that ended lately, the last ones first, without those of others.
#[tokio::test(flavor = "multi_thread")]
async fn recent_jobs_are_those_of_the_group() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let mut ended = Vec::new();
    for n in 0..4 {
        enqueue(pool, "q", "other", "x").await;
        let job = enqueue(pool, "q", "g", "x").await;
        if n == 0 {
            client.cancel(pool, job).await.unwrap();
        }
        ended.push(job);
    }
    let open = enqueue(pool, "late", "g", "x").await;
    let runs = handler(async |_, _| Ok(serde_json::Value::Null));
    let running = started(Processor::builder(pool.clone()).queue(queue("q"), runs)).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    let recent = client.recent_jobs(pool, "q", "g", 3).await.unwrap();
    let recent: Vec<_> = recent.iter().map(|job| job.id).collect();
    assert_eq!(recent, [ended[3], ended[2], ended[1]]);
    let all = client.recent_jobs(pool, "q", "g", 10).await.unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(all[3].status, JobStatus::Cancelled);
    assert!(client.recent_jobs(pool, "late", "g", 10).await.unwrap().is_empty(), "{open} waits");
}

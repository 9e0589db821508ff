//! Unique keys, as applications use them: what a duplicate promises, and calls with several jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::json;
use seriatim::explain::Reason;
use seriatim::{Client, EnqueueError, Enqueued, Hold, NewJob, Processor, Unique};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;

use crate::support::{
    by_hand, database, drained, handler_with, job, job_of, jobs_where, operator, queue, sample,
    size, started, value,
};

fn unique(data: i64, unique: Unique) -> NewJob {
    job_of("q", "g", data).unique(unique)
}

fn is_duplicate(answers: &[Enqueued]) -> Vec<bool> {
    answers.iter().map(|answer| answer.is_duplicate()).collect()
}

/// Each change of a document is followed by an export that has seen it, by whatever job that is.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_is_unique_until_it_starts_misses_no_change() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_mins(1))]) {
        let database = database().await;
        let pool = &database.pool_with(PgPoolOptions::new().max_connections(20)).await.unwrap();
        by_hand(
            pool,
            "create table document (id int primary key, version bigint, exported bigint)",
        )
        .await;
        by_hand(pool, "insert into document select n, 0, 0 from generate_series(1, 5) n").await;
        let run = handler_with(pool.clone(), async |pool, _, id| {
            // By another session, which sees what is committed.
            let export = "update document set exported = version where id = $1";
            sqlx::query(export).bind(id.as_i64()).execute(&pool).await?;
            Ok(json!(null))
        });
        let builder = Processor::builder(pool.clone());
        let running = started(builder.queue(queue("q").concurrency(4).hold(hold), run)).await;
        let (changes, jobs) = (size(400, 2_000), Arc::new(AtomicI64::new(0)));
        let producers = (0..4).map(|producer| {
            let (pool, jobs) = (pool.clone(), Arc::clone(&jobs));
            tokio::spawn(async move {
                for n in 0..changes / 4 {
                    let id = (n + producer) % 5 + 1;
                    let mut tx = pool.begin().await.unwrap();
                    let update = "update document set version = version + 1 where id = $1";
                    sqlx::query(update).bind(id).execute(&mut *tx).await.unwrap();
                    let key = Unique::until_start(id.to_string());
                    let export = NewJob::new("q", &id).group(format!("g{}", id % 3)).unique(key);
                    let enqueued = Client::default().enqueue(&mut *tx, export).await.unwrap();
                    if n % 7 == 0 {
                        tokio::time::sleep(Duration::from_millis(3)).await;
                    }
                    tx.commit().await.unwrap();
                    jobs.fetch_add(i64::from(!enqueued.is_duplicate()), Ordering::Relaxed);
                }
            })
        });
        for producer in producers.collect::<Vec<_>>() {
            producer.await.unwrap();
        }
        drained(pool, "q").await;
        let missed = "select count(*) from document where exported <> version";
        assert_eq!(value::<i64>(pool, missed).await, 0);
        let jobs = jobs.load(Ordering::Relaxed);
        println!("{hold:?}: {jobs} exports of {changes} changes");
        assert_eq!(jobs_where(pool, "status = 'succeeded'").await, jobs);
        assert!(jobs < i64::from(changes), "no export was a duplicate");
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn several_jobs_of_one_call_may_have_one_key() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let keeps = || Unique::until_start("k");
    let answers = client
        .enqueue_many(pool, [unique(1, keeps()), job_of("q", "g", 2), unique(3, keeps())])
        .await
        .unwrap();
    assert_eq!(is_duplicate(&answers), [false, false, true]);
    assert_eq!(answers[2].id(), answers[0].id());
    assert!(answers[0].id() < answers[1].id());
    // The last one's data, at the place of the first.
    let replaces = || Unique::replace("r");
    let jobs = [
        unique(4, replaces()).priority(3),
        unique(5, keeps()),
        unique(6, Unique::until_end("r")),
        unique(7, replaces()).group("other").name("n"),
        unique(8, keeps().in_group()),
        unique(9, Unique::debounce("r")).delay(Duration::from_hours(1)),
    ];
    let again = client.enqueue_many(pool, jobs).await.unwrap();
    assert_eq!(is_duplicate(&again), [false, true, false, true, false, true]);
    assert_eq!((again[1].id(), again[3].id()), (answers[0].id(), again[0].id()));
    assert_eq!(again[5].id(), again[0].id());
    let merged = job(pool, again[0].id()).await;
    assert_eq!((merged.data, merged.priority), (json!(9), 3));
    assert_eq!((merged.group.as_deref(), merged.name), (Some("g"), None));
    assert_eq!(merged.unique_key.as_deref(), Some("r"));
    assert!(merged.run_at > merged.created_at + Duration::from_mins(59));
    assert_eq!(jobs_where(pool, "true").await, 5);
    assert_eq!(jobs_where(pool, "flagged").await, 2, "the first of a group in each statement");
}

#[tokio::test]
async fn what_no_unique_job_can_have_is_refused() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let refused = async |job| client.enqueue(pool, job).await.unwrap_err().to_string();
    let alone = NewJob::new("q", &1).unique(Unique::until_start("k").in_group());
    assert!(refused(alone).await.contains("unique"));
    assert!(refused(unique(1, Unique::until_end(""))).await.contains("unique key"));
    assert!(refused(unique(1, Unique::until_end("x".repeat(129)))).await.contains("129"));
    for level in ["repeatable read", "serializable"] {
        let begin = AssertSqlSafe(format!("begin isolation level {level}"));
        let mut tx = pool.begin_with(begin).await.unwrap();
        let error = client.enqueue(&mut *tx, unique(1, Unique::until_end("k"))).await.unwrap_err();
        assert!(matches!(error, EnqueueError::Database(_)), "{error:?}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("a unique key needs READ COMMITTED"), "{source}");
    }
    assert_eq!(jobs_where(pool, "true").await, 0);
}

#[tokio::test]
async fn a_replaced_job_says_so() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for n in 0..3 {
        client.enqueue(pool, unique(n, Unique::replace("k"))).await.unwrap();
    }
    let id = value::<i64>(pool, "select max(id) from seriatim.job").await;
    let explained = client.explain_job(pool, id).await.unwrap().unwrap();
    assert_eq!(explained.replaced, 2);
    assert!(
        explained.to_string().contains(" Its data was replaced 2 times, last at "),
        "{explained}"
    );
    assert!(!matches!(explained.reason, Reason::Ended { .. }));
    assert_eq!(job(pool, id).await.replaced, 2);
}

/// A job that an operator moves, parks or queues again has a place that no enqueue takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ended_or_left_its_queue_has_no_key() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for key in [Unique::until_start("k"), Unique::until_end("e")] {
        let put = async || client.enqueue(pool, unique(1, key.clone())).await.unwrap();
        let cancelled = put().await.id();
        client.cancel(pool, cancelled).await.unwrap();
        let moved = put().await;
        assert!(!moved.is_duplicate(), "{key:?}");
        operator().move_jobs(pool, &[moved.id()], "other").await.unwrap();
        assert!(!put().await.is_duplicate(), "{key:?}");
        // Queued again beside the one that has the key.
        operator().retry(pool, cancelled).await.unwrap();
        assert!(put().await.is_duplicate(), "{key:?}");
        by_hand(pool, "delete from seriatim.job").await;
        assert!(!put().await.is_duplicate(), "{key:?}");
    }
}

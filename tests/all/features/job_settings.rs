//! The settings that a producer can give a job, and where they are seen.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::json;
use seriatim::{Client, NewJob};

use crate::support::{by_hand, database, ended, handler, job, job_of, queue, serve, value};

#[tokio::test(flavor = "multi_thread")]
async fn everything_said_is_shown_to_people_and_handlers() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(
        &database,
        10,
        queue("q"),
        handler(async |job, _| {
            Ok(json!([job.name(), job.reference(), job.priority(), job.content_type()]))
        }),
    )
    .await;
    let expires_at = Utc::now() + TimeDelta::hours(1);
    let said = job_of("q", "g", 1)
        .name("post")
        .reference("order 7")
        .priority(9)
        .expires_at(expires_at)
        .lease(Duration::from_millis(1_500));
    let jobs = seriatim::enqueue_many(pool, [said, job_of("q", "h", 1)]).await.unwrap();
    let seen = ended(pool, jobs[0].id()).await;
    assert_eq!(seen.result, Some(json!(["post", "order 7", 9, null])));
    assert_eq!((seen.name.as_deref(), seen.reference.as_deref()), (Some("post"), Some("order 7")));
    assert_eq!((seen.priority, seen.lease), (9, Some(Duration::from_millis(1_500))));
    let stored = seen.expires_at.unwrap();
    assert_eq!(stored.timestamp_micros(), expires_at.timestamp_micros());
    let seen = ended(pool, jobs[1].id()).await;
    assert_eq!(seen.result, Some(json!([null, null, 0, null])));
    assert_eq!((seen.name, seen.reference, seen.lease), (None, None, None));
    assert_eq!((seen.expires_at, seen.dedup_id, seen.payload), (None, None, None));
}

#[tokio::test]
async fn jobs_are_found_by_the_callers_own_id() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let of = |queue: &str, reference: &str| NewJob::new(queue, &1).reference(reference);
    let jobs = [of("q", "a"), of("q", "b"), of("q", "a"), of("r", "a"), NewJob::new("q", &1)];
    let ids: Vec<i64> =
        seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect();
    client.cancel(pool, ids[0]).await.unwrap();
    let found = async |reference: &str, most| -> Vec<i64> {
        let jobs = client.jobs_by_reference(pool, "q", reference, most).await.unwrap();
        jobs.iter().map(|job| job.id).collect()
    };
    assert_eq!(found("a", 10).await, [ids[2], ids[0]], "the newest first, ended ones too");
    assert_eq!(found("a", 1).await, [ids[2]]);
    assert_eq!(found("c", 10).await, [0; 0]);
    // By its index, also in a long history of a session that plans for good.
    by_hand(
        pool,
        "insert into seriatim.job (queue, data, reference) \
         select 'q', '1', 'r' || n from generate_series(1, 20000) n; analyze seriatim.job",
    )
    .await;
    let mut conn = database.connect().await.unwrap();
    for _ in 0..8 {
        sqlx::query("select pg_stat_clear_snapshot()").execute(&mut conn).await.unwrap();
        let mut tx = sqlx::Connection::begin(&mut conn).await.unwrap();
        client.jobs_by_reference(&mut *tx, "q", "r17", 10).await.unwrap();
        let read: i64 = sqlx::query_scalar(
            "select sum(pg_stat_get_xact_tuples_returned(c.oid))::int8 from pg_class c \
             where c.relnamespace = 'seriatim'::regnamespace",
        )
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        assert!(read < 10, "it read {read} rows");
        tx.rollback().await.unwrap();
    }
    sqlx::Connection::close(conn).await.unwrap();
}

#[tokio::test]
async fn a_priority_makes_an_ungrouped_job_ready_earlier() {
    let database = database().await;
    let pool = database.pool();
    let later = Utc::now() + TimeDelta::hours(1);
    let jobs = [
        NewJob::new("q", &1),
        NewJob::new("q", &1).priority(3),
        NewJob::new("q", &1).priority(3).run_at(later),
        NewJob::new("q", &1).priority(3).run_at(later).time_to_live(Duration::from_mins(30)),
        NewJob::new("q", &1).priority(9).run_at(chrono::DateTime::UNIX_EPOCH),
    ];
    let ids: Vec<i64> =
        seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect();
    let starts = async |id: i64, than: &str| -> f64 {
        let sql = format!(
            "select extract(epoch from {than} - turn_at)::float8 from seriatim.job where id = {id}"
        );
        value(pool, sql).await
    };
    for (id, than, sooner) in [
        (ids[0], "run_at", 0.0),
        (ids[1], "run_at", 30.0),
        // Its priority aging comes when it is due. A job that expires before comes up to end.
        (ids[2], "run_at", 0.0),
        (ids[3], "expires_at", 0.0),
        (ids[4], "run_at", 90.0),
    ] {
        assert!((starts(id, than).await - sooner).abs() < 1e-3, "{id} against {than}");
    }
}

#[tokio::test]
async fn a_time_to_live_counts_from_the_enqueue() {
    let database = database().await;
    let pool = database.pool();
    let mut tx = pool.begin().await.unwrap();
    let new = job_of("q", "g", 1)
        .expires_at(chrono::DateTime::UNIX_EPOCH)
        .time_to_live(Duration::from_mins(1));
    let id = seriatim::enqueue(&mut *tx, new).await.unwrap().id();
    let seen = job(&mut *tx, id).await;
    let lives = seen.expires_at.unwrap().signed_duration_since(seen.created_at);
    assert!((60.0..90.0).contains(&lives.as_seconds_f64()), "{lives}");
    // It replaces what was said before, and is replaced.
    let new = job_of("q", "g", 1)
        .time_to_live(Duration::from_mins(1))
        .expires_at(chrono::DateTime::UNIX_EPOCH);
    let id = seriatim::enqueue(&mut *tx, new).await.unwrap().id();
    assert_eq!(job(&mut *tx, id).await.expires_at, Some(chrono::DateTime::UNIX_EPOCH));
    tx.rollback().await.unwrap();
}

//! Cost of an enqueue: a measurement, run by hand with `cargo test --release --lib
//! interleavings::cost -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::run;
use crate::{Client, NewJob};

/// A statement without settings and deduplication, for comparison.
const BARE: &str = "with input as materialized (select unnest($1) queue, unnest($2) group_id, unnest($3) data, \
  unnest($4) delay, unnest($5) run_at, unnest($6) max_attempts, unnest($7) timeout_ms, \
  generate_subscripts($1, 1) place), inserted as materialized (insert into seriatim.job \
  (queue, group_id, data, run_at, max_attempts, timeout_ms, flagged, turn_at) select queue, group_id, data::jsonb, \
  coalesce(run_at, clock_timestamp() + make_interval(secs => delay), now()), max_attempts, timeout_ms, \
  group_id is not null and row_number() over (partition by queue, group_id order by place) = 1, \
  coalesce(run_at, clock_timestamp() + make_interval(secs => delay), now()) from input order by place \
  returning id, queue, group_id, run_at), due as materialized (select distinct queue, group_id from inserted \
  where run_at <= clock_timestamp()), idle as materialized (select distinct queue from due \
  where seriatim.seems_idle(queue, array[group_id], group_id is null)) \
  select id, (select count(pg_notify($8, queue)) from idle) from inserted order by id";

async fn bare(conn: &mut PgConnection, jobs: usize) {
    let rows = sqlx::query(BARE)
        .bind(vec![Q.to_owned(); jobs])
        .bind(vec![Some("g".to_owned()); jobs])
        .bind(vec!["1".to_owned(); jobs])
        .bind(vec![None::<f64>; jobs])
        .bind(vec![None::<chrono::DateTime<chrono::Utc>>; jobs])
        .bind(vec![None::<i32>; jobs])
        .bind(vec![None::<i64>; jobs])
        .bind("seriatim.wake")
        .fetch_all(conn)
        .await
        .unwrap();
    assert_eq!(rows.len(), jobs);
}

async fn ours(conn: &mut PgConnection, jobs: usize) {
    let new = (0..jobs).map(|_| NewJob::new(Q, &1).group("g"));
    Client::default().enqueue_many(conn, new).await.unwrap();
}

async fn deduplicated(conn: &mut PgConnection, jobs: usize) {
    let new =
        (0..jobs).map(|_| NewJob::new(Q, &1).group("g").dedup_id(fastrand::u64(..).to_string()));
    Client::default().enqueue_many(conn, new).await.unwrap();
}

#[tokio::test]
#[ignore = "a measurement"]
async fn a_plain_enqueue_pays_little_for_unused_features() {
    let scene = Scene::new().await;
    let mut conn = scene.session().await;
    run(
        &mut conn,
        "insert into seriatim.queue (name) select 'other ' || n from generate_series(1, 10) n",
    )
    .await;
    for (jobs, calls, in_transaction) in [(1, 300, true), (1, 300, false), (1000, 5, true)] {
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..7 {
            for (way, times) in times.iter_mut().enumerate() {
                if in_transaction {
                    run(&mut conn, "begin").await;
                }
                let began = Instant::now();
                for _ in 0..calls {
                    match way {
                        0 => bare(&mut conn, jobs).await,
                        1 => ours(&mut conn, jobs).await,
                        _ => deduplicated(&mut conn, jobs).await,
                    }
                }
                times.push(began.elapsed() / calls);
                if in_transaction {
                    run(&mut conn, "rollback").await;
                }
            }
        }
        let median = times.map(|mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2]
        });
        println!(
            "{jobs} jobs, in a transaction {in_transaction}: bare, ours, deduplicated {median:?}"
        );
    }
    scene.end().await;
}

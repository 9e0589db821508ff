//! `maintain`: queues that no processor serves are maintained by SQL.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use seriatim::testing::Jobs;
use seriatim::{Client, QueueOptions, Retention};
use sqlx::PgPool;

use crate::support::{by_hand, database, job_of, value};

/// Runs what `pg_cron` runs.
async fn maintain(pool: &PgPool) -> serde_json::Value {
    value(pool, "select to_jsonb(m) from seriatim.maintain() m").await
}

/// Lets the next call run retention and the sweep.
async fn round_is_due(pool: &PgPool) {
    by_hand(pool, "update seriatim.maintenance set seen_at = null where queue = ''").await;
}

#[tokio::test]
async fn retention_of_sql_queues_is_kept_by_sql() {
    let database = database().await;
    let pool = database.pool();
    for (status, hours) in [("succeeded", 25), ("failed", 14 * 24 + 1), ("cancelled", 25)] {
        for (age, group) in [(hours, "old"), (hours - 2, "young")] {
            let insert = format!(
                "insert into seriatim.job (queue, group_id, data, status, finished_at) values \
                 ('sql', '{group}', '1', '{status}', now() - interval '{age} hours')"
            );
            by_hand(pool, insert).await;
        }
    }
    let done = maintain(pool).await;
    assert_eq!((&done["deleted"], &done["more"]), (&json!(3), &json!(false)), "{done}");
    let left = "select array_agg(distinct group_id) from seriatim.job";
    assert_eq!(value::<Vec<String>>(pool, left).await, ["young"]);

    // A round is due every 10 s.
    by_hand(pool, "update seriatim.job set finished_at = now() - interval '30 days'").await;
    assert_eq!(maintain(pool).await["deleted"], 0);
    round_is_due(pool).await;
    assert_eq!(maintain(pool).await["deleted"], 3);
}

/// A processor that keeps jobs for ever is down: no other process deletes them.
#[tokio::test]
async fn jobs_stay_as_long_as_their_processor_has_said() {
    let database = database().await;
    let pool = database.pool();
    let options = QueueOptions::new("q")
        .keep_succeeded(Retention::Forever)
        .keep_cancelled(Retention::For(Duration::from_mins(1)));
    let client = Client::default();
    client.run_maintenance(pool, options).await.unwrap();
    for status in ["succeeded", "cancelled"] {
        let insert = format!(
            "insert into seriatim.job (queue, data, status, finished_at) values \
             ('q', '1', '{status}', now() - interval '1 hour'), \
             ('q', '1', '{status}', now() - interval '10 years')"
        );
        by_hand(pool, insert).await;
    }
    let done = client.maintain(pool).await.unwrap();
    assert_eq!(done.deleted, 2);
    let left = "select array_agg(distinct status::text) from seriatim.job";
    assert_eq!(value::<Vec<String>>(pool, left).await, ["succeeded"]);
}

#[tokio::test]
async fn a_halt_with_an_end_ends_without_a_processor() {
    let database = database().await;
    let pool = database.pool();
    for then in ["continue", "park"] {
        let settings = format!(
            "select seriatim.configure_queue('{then}', '{{\"max_attempts\": 1, \"out_of_attempts\": \"halt\", \
             \"halt_for\": \"1 ms\", \"halt_then\": \"{then}\"}}')"
        );
        by_hand(pool, settings).await;
        for n in 0..2 {
            seriatim::enqueue(pool, job_of(then, "g", n)).await.unwrap();
        }
        let fails = format!(
            "select seriatim.nack(r.receipt, error => 'it failed') from seriatim.receive('{then}') r"
        );
        by_hand(pool, fails).await;
        let halted = format!(
            "select count(*) from seriatim.queue_group where queue = '{then}' and halted_at is not null"
        );
        assert_eq!(value::<i64>(pool, halted.clone()).await, 1);
        tokio::time::sleep(Duration::from_millis(5)).await; // the halt's deadline
        assert_eq!(maintain(pool).await["halts_ended"], 1);
        assert_eq!(value::<i64>(pool, halted).await, 0);
        let waits = format!(
            "select count(*) from seriatim.job where queue = '{then}' and status = '{}'",
            if then == "park" { "parked" } else { "queued" }
        );
        assert_eq!(value::<i64>(pool, waits).await, 1);
    }
}

/// Requests, batches, move tasks, and a table that was written by hand.
#[tokio::test]
async fn one_call_does_all_duties() {
    let database = database().await;
    let pool = database.pool();
    let job = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    by_hand(pool, format!("insert into seriatim.cancel_request (job_id) values ({job})")).await;
    by_hand(pool, "select seriatim.open_batch('b', 'after', null, '{\"data\": 1}')").await;
    by_hand(pool, "select seriatim.seal_batch(1)").await;
    by_hand(pool, "insert into seriatim.job (queue, group_id, data) values ('hand', 'g', '1')")
        .await;
    seriatim::enqueue(pool, job_of("from", "g", 1)).await.unwrap();
    by_hand(pool, "select seriatim.start_move_task('from', 'to')").await;
    let done = maintain(pool).await;
    for duty in ["cancelled", "batches_ended", "moved", "repaired"] {
        assert_eq!(done[duty], 1, "{duty}: {done}");
    }
    let received = "select count(*) from seriatim.receive('hand')";
    assert_eq!(value::<i64>(pool, received).await, 1, "the sweep has flagged it");
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.receive('after')").await, 1);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.receive('to')").await, 1);
}

#[tokio::test]
async fn sql_fires_schedules_as_processes_do() {
    let (by_sql, by_rust) = (database().await, database().await);
    let now: DateTime<Utc> = value(by_sql.pool(), "select now()").await;
    let whole: DateTime<Utc> = value(by_sql.pool(), "select date_trunc('hour', now())").await;
    for at in [now, whole] {
        for pool in [by_sql.pool(), by_rust.pool()] {
            by_hand(pool, "truncate seriatim.schedule, seriatim.job").await;
            // A row for each interval, policy, lateness, and time from which due times count.
            let schedules = "insert into seriatim.schedule (name, queue, group_id, job, kind, spec, missed, \
                   missed_at_most, next_fire, counts_from) \
                 select concat_ws(' ', e, m, l, c), 'q', concat_ws(' ', e, m, l, c), jsonb '{\"data\": 1}', 'every', \
                   e::text, m, case when m = 'all' then 3 end, $1 - make_interval(secs => l), \
                   $1 - make_interval(secs => c) \
                 from unnest(array[1, 7, 60, 3600, 86400]) e, unnest(array['last', 'skip', 'all']) m, \
                   unnest(array[0, 30, 61, 10000]) l, unnest(array[0, 45, 20000]) c \
                 union all \
                 select concat_ws(' ', m, l), 'q', concat_ws(' ', m, l), jsonb '{\"data\": 1}', 'once_at', \
                   to_char($1 at time zone 'UTC' - make_interval(secs => l), 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), \
                   m, case when m = 'all' then 3 end, $1 - make_interval(secs => l), $1 - interval '1 hour' \
                 from unnest(array['last', 'skip', 'all']) m, unnest(array[0, 30, 61, 10000]) l";
            sqlx::query(schedules).bind(at).execute(pool).await.unwrap();
        }
        let fire = "select seriatim.fire_simple_schedules(1000, $1)";
        let made: i64 = sqlx::query_scalar(fire).bind(at).fetch_one(by_sql.pool()).await.unwrap();
        assert_eq!(
            made.unsigned_abs(),
            Jobs::new(by_rust.pool()).fire_schedules(at).await.unwrap()
        );
        let jobs = "select array_agg(group_id || ': ' || (headers->>'seriatim-scheduled-for') \
             order by group_id, headers->>'seriatim-scheduled-for') from seriatim.job";
        let next = "select array_agg(name || ': ' || coalesce(next_fire::text, '') order by name) from seriatim.schedule";
        for same in [jobs, next] {
            let (sql, rust): (Vec<String>, Vec<String>) =
                (value(by_sql.pool(), same).await, value(by_rust.pool(), same).await);
            assert_eq!(sql, rust);
        }
    }
}

/// The schedules that are refused stay due, and so first in line.
#[tokio::test]
async fn however_many_schedules_are_refused_maintain_fires_the_others() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "insert into seriatim.schedule (name, queue, job, kind, spec, counts_from, next_fire) \
           select 'refused ' || k, 'q', '{\"data\": 1}', 'every', 'unreadable', now(), \
             now() - interval '1 day' from generate_series(1, 101) k; \
         insert into seriatim.schedule (name, queue, job, kind, spec, counts_from, next_fire) \
           values ('good', 'q', '{\"data\": 1}', 'every', '3600', now() - interval '1 day', \
             now() - interval '1 hour')",
    )
    .await;
    let mut scheduled = 0;
    // By chance the first calls may not come to it.
    for _ in 0..20 {
        scheduled += maintain(pool).await["scheduled"].as_i64().unwrap();
    }
    assert_eq!(scheduled, 1);
}

#[tokio::test]
async fn maintain_leaves_cron_schedules_to_processes() {
    let database = database().await;
    let pool = database.pool();
    let set = "select seriatim.set_schedule('s', 'q', 'g', '{\"data\": 1}', $1, $2, $3, now() - interval '1 s')";
    sqlx::query(set).bind("cron").bind("* * * * *").bind(Some("UTC")).execute(pool).await.unwrap();
    by_hand(
        pool,
        "update seriatim.schedule set counts_from = now() - interval '1 hour', \
         next_fire = date_trunc('minute', now()) - interval '1 min'",
    )
    .await;
    assert_eq!(maintain(pool).await["scheduled"], 0);
    assert_eq!(Client::default().maintain(pool).await.unwrap().scheduled, 1);
}

/// A claim that nobody acked, and a job that expired: a fleet whose receives stay open leaves both
/// to maintenance.
#[tokio::test]
async fn maintain_keeps_up_queues_that_receivers_serve() {
    let database = database().await;
    let pool = database.pool();
    seriatim::enqueue(pool, job_of("q", "lapses", 1)).await.unwrap();
    by_hand(pool, "select seriatim.receive('q', visibility => '0 s')").await;
    let expires =
        "select seriatim.enqueue('q', '1', 'expires', expires_at => now() + interval '1 ms')";
    by_hand(pool, expires).await;
    by_hand(
        pool,
        "update seriatim.queue_group set ready_at = ready_at - interval '1 min'; \
         update seriatim.job set turn_at = turn_at - interval '1 min', \
           expires_at = expires_at - interval '1 min'",
    )
    .await;
    maintain(pool).await;
    let suspected =
        "select suspect is not null from seriatim.queue_group where group_id = 'lapses'";
    assert!(value::<bool>(pool, suspected).await);
    let end_of_expired = "select error->>'kind' from seriatim.job where group_id = 'expires'";
    assert_eq!(value::<String>(pool, end_of_expired).await, "expired");
}

/// Groups with a row, and one without, have just come due.
#[tokio::test]
async fn maintenance_locks_nothing_that_receivers_are_about_to_take() {
    let database = database().await;
    let pool = database.pool();
    for group in ["a", "b", "new"] {
        seriatim::enqueue(pool, job_of("q", group, 1)).await.unwrap();
    }
    by_hand(
        pool,
        "select seriatim.nack(r.receipt, delay => '0 s') from seriatim.receive('q', 2) r",
    )
    .await;
    let mut maintains = pool.begin().await.unwrap();
    sqlx::query("select seriatim.maintain()").execute(&mut *maintains).await.unwrap();
    let received = "select array_agg(group_id order by group_id) from seriatim.receive('q', 10)";
    assert_eq!(value::<Vec<String>>(pool, received).await, ["a", "b", "new"]);
    maintains.rollback().await.unwrap();
}

/// Two timers at once, and one beside a processor: one does the work, and none waits.
#[tokio::test]
async fn one_process_at_a_time_maintains() {
    let database = database().await;
    let pool = database.pool();
    let mut first = pool.begin().await.unwrap();
    sqlx::query("select seriatim.maintain()").execute(&mut *first).await.unwrap();
    let done = maintain(pool).await;
    assert_eq!((&done["deleted"], &done["more"]), (&json!(0), &json!(false)));
    first.rollback().await.unwrap();
}

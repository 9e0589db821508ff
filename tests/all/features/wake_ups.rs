//! Without polling: what a wake-up, and the read behind a job, must find by themselves.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{Client, Hold, JobHandler, Processor, QueueOptions, Running};
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::sleep;

use crate::support::{
    Gate, Log, PATIENCE, by_hand, database, drained, eventually, handler_with, held_up, job_of,
    queue, sample, started, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(10))];

/// A processor that does not poll, once its first poll is over.
async fn start(
    database: &TestDatabase,
    options: QueueOptions,
    handler: impl JobHandler,
) -> Running {
    let named = PgPoolOptions::new().max_connections(10).after_connect(|conn, _| {
        Box::pin(async {
            sqlx::query("set application_name = 'processor'").execute(conn).await.map(drop)
        })
    });
    let pool = database.pool_with(named).await.unwrap();
    let builder =
        Processor::builder(pool).poll_interval(Duration::from_hours(1)).maintenance_interval(None);
    let running = started(builder.queue(options, handler)).await;
    // A session listens: from then on nothing is missed.
    let listens = "select exists (select from pg_stat_activity \
                   where datname = current_database() and query ilike 'listen%' and state = 'idle')";
    eventually(database.pool(), listens, true).await;
    running
}

fn logged(log: &Log) -> impl JobHandler + use<> {
    handler_with(log.clone(), async |log, _, data| {
        log.add(data.to_string());
        Ok(Value::Null)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_due_is_run() {
    for hold in sample(HOLDS) {
        for slots in [1, 2, 8] {
            let database = database().await;
            let log = Log::default();
            let options = queue("q").concurrency(slots).hold(hold);
            let running = start(&database, options, logged(&log)).await;
            let jobs = (0..30).map(|n| job_of("q", &format!("g{}", n % 10), n));
            seriatim::enqueue_many(database.pool(), jobs).await.unwrap();
            log.wait_for(30).await;
            // One by one, each into a queue that is quiet.
            for n in 30..36 {
                seriatim::enqueue(database.pool(), job_of("q", &format!("g{n}"), n)).await.unwrap();
                log.wait_for(n + 1).await;
            }
            running.shutdown(PATIENCE).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_while_all_slots_are_taken_is_not_forgotten() {
    for hold in sample(HOLDS) {
        for slots in [1, 2] {
            let database = database().await;
            let (log, gate) = (Log::default(), Gate::default());
            let options = queue("q").concurrency(slots).hold(hold);
            let running = start(&database, options, held_up(&log, &gate)).await;
            let mut listener = PgListener::connect_with(database.pool()).await.unwrap();
            listener.listen("seriatim.wake").await.unwrap();
            for n in 0..slots {
                seriatim::enqueue(database.pool(), job_of("q", &format!("g{n}"), n)).await.unwrap();
                log.wait_for(n + 1).await;
                listener.recv().await.unwrap();
            }
            seriatim::enqueue(database.pool(), job_of("q", "next", slots)).await.unwrap();
            listener.recv().await.unwrap();
            gate.pass(slots + 1);
            log.wait_for(slots + 1).await;
            running.shutdown(PATIENCE).await;
            drop(listener);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_enqueues_without_a_wake_up_is_found_behind_it() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let log = Log::default();
        let run = handler_with(log.clone(), async |log, job, data| {
            let n = data.as_u64().unwrap();
            log.add(n.to_string());
            let quietly = Client::default().notify(false);
            let next = job_of("q", &format!("g{n}"), n + 1);
            if n < 5 {
                let tx = job.tx().await?;
                quietly.enqueue(&mut *tx, next).await?;
            }
            Ok(json!(null))
        });
        let running = start(&database, queue("q").hold(hold), run).await;
        seriatim::enqueue(database.pool(), job_of("q", "g", 0)).await.unwrap();
        log.wait_for(6).await;
        running.shutdown(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_during_a_claim_is_found_while_its_job_runs() {
    // By transaction the claim's own lease calls for a poll half a second later, and would hide it.
    let hold = HOLDS[1];
    let database = database().await;
    let pool = database.pool();
    // The claim stops after its read of what is due.
    by_hand(
        pool,
        "create function stop_there() returns trigger language plpgsql as $$ begin \
           perform set_config('lock_timeout', '20s', true), pg_advisory_lock(7), pg_advisory_unlock(7); \
           return new; end $$",
    )
    .await;
    by_hand(
        pool,
        "create trigger stop_there before insert on seriatim.queue_group for each row \
           when (new.group_id = 'first') execute function stop_there()",
    )
    .await;
    let mut holder = pool.acquire().await.unwrap();
    sqlx::query("select pg_advisory_lock(7)").execute(&mut *holder).await.unwrap();
    let (log, gate) = (Log::default(), Gate::default());
    let running = start(&database, queue("q").hold(hold), held_up(&log, &gate)).await;
    // Only one that sleeps shows it.
    sleep(Duration::from_millis(50)).await;
    let quietly = Client::default().notify(false);
    let mut tx = pool.begin().await.unwrap();
    quietly.enqueue(&mut *tx, job_of("q", "second", 2)).await.unwrap();
    seriatim::enqueue(pool, job_of("q", "first", 1)).await.unwrap();
    let stopped = "select exists (select from pg_stat_activity where wait_event = 'advisory' and datname = current_database())";
    eventually(pool, stopped, true).await;
    tx.commit().await.unwrap();
    sqlx::query("select pg_advisory_unlock(7)").execute(&mut *holder).await.unwrap();
    log.wait_for(2).await;
    gate.pass(2);
    running.shutdown(PATIENCE).await;
    drop(holder);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_sends_no_wake_up_where_many_others_just_have() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create function looks_idle_beside(n integer, of_queue text, due interval, age interval, pause float8) returns boolean \
         language plpgsql as $$ declare idle boolean; begin \
           delete from seriatim.job; perform set_config('seriatim.burst', '', false), pg_sleep(pause); \
           insert into seriatim.job (queue, group_id, flagged, data, run_at, turn_at, created_at) \
             select of_queue, 'g' || i, true, '{}', clock_timestamp() + due, clock_timestamp() + due, clock_timestamp() + due - age \
             from generate_series(1, n) i; \
           idle := seriatim.seems_idle('q', array['another'], false); \
           return case when pause > 0 or clock_timestamp() < now() + '5 ms' then idle end; end $$",
    )
    .await;
    let seems_idle = async |args: &str| {
        loop {
            let sql = format!("select looks_idle_beside({args})");
            // Null: it took longer than the burst.
            if let Some(idle) = value::<Option<bool>>(pool, sql).await {
                break idle;
            }
        }
    };
    assert!(!seems_idle("16, 'q', '0', '0', 0").await);
    for (args, why) in [
        ("15, 'q', '0', '0', 0", "too few"),
        ("16, 'other', '0', '0', 0", "of another queue"),
        ("16, 'q', '-1 s', '0', 0", "they should have been found meanwhile"),
        ("16, 'q', '1 min', '0', 0", "no worker looks for them yet"),
        ("16, 'q', '0', '1 s', 0", "they were enqueued before, and sent no wake-up"),
        ("16, 'q', '0', '0', 0.01", "it is committed later than they"),
    ] {
        assert!(seems_idle(args).await, "{why}");
    }
    by_hand(
        pool,
        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
           select 'q', 'g' || i, now(), 1 from generate_series(1, 16) i",
    )
    .await;
    assert!(
        seems_idle("16, 'q', '0', '0', 0").await,
        "their groups were busy: they sent no wake-up"
    );
    // A job that the library enqueues without a delay is due as it is created.
    seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap();
    let at_once = "select run_at <= created_at from seriatim.job where group_id = 'g'";
    assert!(value::<bool>(pool, at_once).await);
}

#[tokio::test]
async fn a_session_relies_for_10_ms_on_a_burst_that_it_saw() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create function enqueued(n integer, of_queue text) returns boolean language plpgsql as $$ begin \
           delete from seriatim.job; \
           insert into seriatim.job (queue, group_id, flagged, data, run_at, created_at) \
             select 'q', 'g' || i, true, '{}', at, at from (select clock_timestamp() at) now, generate_series(1, n) i; \
           return seriatim.seems_idle(of_queue, array['another'], false); end $$",
    )
    .await;
    by_hand(
        pool,
        "create function looks() returns boolean[] language plpgsql as $$ \
         declare \
           begun constant bigint := floor(extract(epoch from clock_timestamp()) * 100); \
           idle boolean[]; undone boolean; \
         begin \
           perform set_config('seriatim.burst', '', false); \
           idle := array[enqueued(15, 'q'), enqueued(0, 'q')]; \
           begin \
             undone := enqueued(16, 'q'); \
             raise exception using errcode = 'P0001'; \
           exception when raise_exception then null; end; \
           idle := idle || undone || enqueued(0, 'q') || enqueued(16, 'q') || enqueued(0, 'q') || enqueued(0, 'other'); \
           return case when begun = floor(extract(epoch from clock_timestamp()) * 100) \
             and clock_timestamp() < now() + '5 ms' then idle end; end $$",
    )
    .await;
    let mut session = pool.acquire().await.unwrap();
    for _ in 0..1000 {
        // Null: it took longer than what it tries.
        let looks: Option<Vec<bool>> =
            sqlx::query_scalar("select looks()").fetch_one(&mut *session).await.unwrap();
        if let Some(idle) = looks {
            let [few, few_gone, undone, forgotten, many, many_gone, other] = idle[..] else {
                panic!("{idle:?}")
            };
            assert!(few && few_gone, "a few are no burst");
            assert!(!undone && forgotten, "what was rolled back is forgotten");
            assert!(!many && !many_gone, "they were there just now");
            assert!(other, "that was another queue");
            sleep(Duration::from_millis(11)).await;
            let over: bool = sqlx::query_scalar("select enqueued(0, 'q')")
                .fetch_one(&mut *session)
                .await
                .unwrap();
            assert!(over, "what was seen more than 10 ms ago");
            drop(session);
            return;
        }
    }
    panic!("it never took less than 5 ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_job_costs_a_claim_and_one_look() {
    const JOBS: usize = 20;
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "do $$ begin execute format('alter database %I set track_functions = pl', current_database()); end $$",
    )
    .await;
    let log = Log::default();
    let begun = Instant::now();
    let running = start(&database, queue("q"), logged(&log)).await;
    let mut slow = 0;
    for n in 0..JOBS {
        let begun = Instant::now();
        seriatim::enqueue(pool, job_of("q", &format!("g{n}"), n)).await.unwrap();
        log.wait_for(n + 1).await;
        drained(pool, "q").await;
        // There is another poll while it runs.
        slow += i64::from(begun.elapsed() > Duration::from_millis(15));
    }
    running.shutdown(PATIENCE).await;
    // Sessions tell what they called when they end.
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'processor'";
    eventually(pool, sessions, 0_i64).await;
    // Up to PostgreSQL 14 what they told takes a while.
    let told = "select coalesce(sum(calls), 0) >= 20 from pg_stat_user_functions where funcname = 'claim_jobs'";
    eventually(pool, told, true).await;
    let calls = async |function| {
        let calls =
            "select coalesce(sum(calls), 0)::int8 from pg_stat_user_functions where funcname";
        value::<i64>(pool, format!("{calls} = '{function}'")).await
    };
    let (claims, looks) = (calls("claim_jobs").await, calls("due_in").await);
    let jobs = i64::try_from(JOBS).unwrap();
    // And some before the first one.
    assert!((jobs..=jobs + 2 * slow + 5).contains(&claims), "{claims} claims, {slow} slow");
    // A heartbeat looks as well.
    let heartbeats = i64::try_from(begun.elapsed().as_millis() / 250).unwrap();
    assert!(looks <= jobs + 2 * slow + 5 + heartbeats, "{looks} looks, {slow} slow");
}

//! A turn is chained while no other group waits for its slot, unless the queue says how many jobs a
//! turn has.

use std::time::Duration;

use serde_json::json;
use seriatim::testing::TestDatabase;
use seriatim::{Client, QueueOptions, Running};
use sqlx::PgPool;

use crate::support::{
    Errors, Gate, Log, database, drained, eventually, handler_with, job_of, nothing_remains,
    processor, queue, until_jobs,
};

/// Notes each turn that is passed on, or ends with its group.
const NOTED: [&str; 4] = [
    "create table turn_end (group_id text)",
    "create function note_end() returns trigger language plpgsql as \
     $$ begin insert into public.turn_end values (old.group_id); return null; end $$",
    "create trigger passed after update on seriatim.queue_group for each row \
     when (old.claim is not null and new.claim is null) execute function public.note_end()",
    "create trigger drained after delete on seriatim.queue_group for each row \
     when (old.claim is not null) execute function public.note_end()",
];

async fn turns(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from turn_end").fetch_one(pool).await.unwrap()
}

/// A processor that logs what its handlers run, whose jobs of a group with a gate wait at that.
async fn start(database: &TestDatabase, options: QueueOptions, log: &Log, gate: &Gate) -> Running {
    for statement in NOTED {
        sqlx::query(statement).execute(database.pool()).await.unwrap();
    }
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data| {
        let group = job.group().unwrap_or("-").to_owned();
        log.add(format!("{group} {data}"));
        if group == "gated" {
            gate.passed().await;
        }
        if group == "slow" {
            // What takes up the time of a turn.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(json!(null))
    });
    processor(database, 12).await.queue(options, run).build().unwrap().start().await.unwrap()
}

async fn fill(pool: &PgPool, group: &str, jobs: usize) {
    seriatim::enqueue_many(pool, (0..jobs).map(|n| job_of("q", group, n))).await.unwrap();
}

/// How many turns 40 jobs of one group took.
async fn turns_of_forty(options: QueueOptions) -> i64 {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let running = start(&database, options, &log, &Gate::default()).await;
    fill(pool, "g", 40).await;
    drained(pool, "q").await;
    let expected: Vec<String> = (0..40).map(|n| format!("g {n}")).collect();
    assert_eq!(log.entries(), expected);
    nothing_remains(pool).await;
    let turns = turns(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_keeps_its_slot_for_a_moment_while_no_other_waits() {
    for slots in [1, 2, 10] {
        let mut turns = Vec::new();
        // Where a job takes 20 ms, on a machine under load, each is a turn of its own.
        while turns.last().is_none_or(|turns| *turns > 20) {
            assert!(turns.len() < 10, "{slots} slots: {turns:?} turns for 40 jobs");
            turns.push(turns_of_forty(QueueOptions::new("q").concurrency(slots)).await);
        }
        println!("{slots} slots: {turns:?} turns");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_where_the_queue_says_how_many_jobs_a_turn_has() {
    assert_eq!(turns_of_forty(queue("q").jobs_per_turn(1)).await, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_others_wait_each_turn_has_one_job() {
    let database = database().await;
    let pool = database.pool();
    for group in ["a", "b", "c"] {
        fill(pool, group, 20).await;
    }
    let log = Log::default();
    let _running = start(&database, queue("q").concurrency(1), &log, &Gate::default()).await;
    drained(pool, "q").await;
    let entries = log.entries();
    for (round, three) in entries.chunks(3).enumerate() {
        let mut three: Vec<&str> = three.iter().map(String::as_str).collect();
        three.sort_unstable();
        let expected = ["a", "b", "c"].map(|group| format!("{group} {round}"));
        assert_eq!(three, expected, "{entries:?}");
    }
}

/// A group that comes while all slots are taken waits for about 20 ms of such a turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_waits_for_some_jobs_only_if_all_slots_are_taken() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let _running = start(&database, queue("q").concurrency(1), &log, &Gate::default()).await;
    fill(pool, "slow", 200).await;
    let is = |group: &'static str| move |entry: &&String| entry.starts_with(group);
    log.wait("some have run", |entries| entries.len() >= 20).await;
    let before = log.entries().len();
    fill(pool, "other", 1).await;
    let entries =
        log.wait("the other one has run", |entries| entries.iter().any(|e| is("other")(&e))).await;
    let at = entries.iter().position(|entry| is("other")(&entry)).unwrap();
    println!("{} jobs of the slow group went before it", at - before);
    assert!(at - before <= 25, "{} jobs of the slow group went before it", at - before);
    drained(pool, "q").await;
}

/// A trigger of the host refuses that the second job is started.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_about_the_next_job_does_not_fail_the_one_before() {
    for with_tx in [false, true] {
        let database = database().await;
        let pool = database.pool();
        let refuses = [
            "create function refuse() returns trigger language plpgsql as \
             $$ begin raise exception 'not this one' using errcode = '23514'; end $$",
            "create trigger refuses before update on seriatim.job for each row \
             when (new.id = 2 and new.status = 'started') execute function public.refuse()",
        ];
        for statement in refuses {
            sqlx::query(statement).execute(pool).await.unwrap();
        }
        let errors = Errors::default();
        let run = handler_with(with_tx, async |with_tx, job, _| {
            if with_tx {
                sqlx::query("select").execute(job.tx().await?).await?;
            }
            Ok(json!(null))
        });
        let builder = errors.of(processor(&database, 6).await);
        let running = builder.queue(queue("q"), run).build().unwrap().start().await.unwrap();
        fill(pool, "g", 3).await;
        let first = "select status::text from seriatim.job where id = 1";
        eventually(pool, first, "succeeded".to_owned()).await;
        let attempts = "select attempts::int8 from seriatim.job where id = 1";
        let attempts: i64 = sqlx::query_scalar(attempts).fetch_one(pool).await.unwrap();
        assert!(attempts <= if with_tx { 2 } else { 1 }, "{attempts} attempts");
        sqlx::query("drop trigger refuses on seriatim.job").execute(pool).await.unwrap();
        drained(pool, "q").await;
        nothing_remains(pool).await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_but_the_one_that_runs_is_claimed() {
    let database = database().await;
    let pool = database.pool();
    let (log, gate) = (Log::default(), Gate::default());
    let _running = start(&database, queue("q").concurrency(2), &log, &gate).await;
    fill(pool, "gated", 10).await;
    for n in 1..=5 {
        log.wait("the next one runs", |entries| entries.len() == n).await;
        let started = "select count(*) from seriatim.job where status = 'started'";
        let started: i64 = sqlx::query_scalar(started).fetch_one(pool).await.unwrap();
        assert_eq!(started, 1);
        gate.pass(1);
    }
    // A pause is seen between two jobs, and what waits can be cancelled at once.
    log.wait("the sixth runs", |entries| entries.len() == 6).await;
    Client::default().pause_group(pool, "q", "gated", None).await.unwrap();
    gate.pass(10);
    until_jobs(pool, "status = 'succeeded'", 6).await;
    assert_eq!(Client::default().purge_group(pool, "q", "gated").await.unwrap().cancelled, 4);
    drained(pool, "q").await;
    assert_eq!(log.entries().len(), 6);
}

/// What makes the hold of a chained job fail, in the message that has committed the job before it.
const FAILING_HOLDS: [&str; 3] = [
    "raise exception 'no lock' using errcode = '55P03'",
    "raise exception 'cancelled' using errcode = '57014'",
    "perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(10)",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_hold_of_the_next_job_costs_no_attempt() {
    for failing in FAILING_HOLDS {
        let database = database().await;
        let pool = database.pool();
        let hold = format!(
            "create or replace function seriatim.hold_next() returns integer language plpgsql \
             as $$ begin if current_setting('seriatim.next', true) <> '' then {failing}; end if; return null; end $$"
        );
        sqlx::query(sqlx::AssertSqlSafe(hold)).execute(pool).await.unwrap();
        let (log, errors) = (Log::default(), Errors::default());
        let run = handler_with(log.clone(), async |log, job, data| {
            log.add(format!("{data} {}", job.attempt()));
            Ok(json!(null))
        });
        let builder = errors.of(processor(&database, 6).await);
        let running =
            builder.queue(queue("q").concurrency(1), run).build().unwrap().start().await.unwrap();
        let begun = std::time::Instant::now();
        fill(pool, "g", 30).await;
        drained(pool, "q").await;
        let took = begun.elapsed();
        let expected: Vec<String> = (0..30).map(|n| format!("{n} 1")).collect();
        assert_eq!(log.entries(), expected, "{failing}");
        // The settle was committed, whatever became of the hold.
        assert_eq!(errors.named("Settle"), [""; 0], "{failing}");
        println!("{failing}: {took:?}, {} holds failed", errors.named("Hold").len());
        nothing_remains(pool).await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

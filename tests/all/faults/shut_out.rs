//! A process without a presence: one that loses it and cannot come back stops its leased handlers
//! before others take over (P2), and nothing is claimed before it is there (P6).

use std::time::Duration;

use seriatim::testing::TestDatabase;
use seriatim::{FailureKind, Hold, JobError, JobStatus, Processor, Running};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::support::{
    Errors, Log, by_hand, database, enqueue, eventually, handler_with, job, queue, value,
};

/// A processor with long leases, whose handler runs until it is told to stop.
fn worker(pool: PgPool, name: &'static str, log: &Log, errors: &Errors) -> Running {
    let run = handler_with((log.clone(), name), async |(log, name), job, _| {
        log.add(format!("{name} begins {}", job.attempt()));
        job.cancelled().await;
        log.add(format!("{name} stops"));
        Err(JobError::retry("stopped"))
    });
    let leased = queue("q").hold(Hold::Lease(Duration::from_mins(10)));
    errors.of(Processor::builder(pool)).queue(leased, run).build().unwrap().start_when_ready()
}

/// A pool whose role may do all that a worker does.
async fn of_a_role(database: &TestDatabase, role: &str) -> PgPool {
    by_hand(
        database.pool(),
        format!(
            "create role {role} login; grant usage on schema seriatim to {role};
             grant select, insert, update, delete on all tables in schema seriatim to {role}"
        ),
    )
    .await;
    let options: PgConnectOptions = database.url().parse().unwrap();
    PgPoolOptions::new().max_connections(4).connect_with(options.username(role)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_loses_its_presence_stops_first() {
    let database = database().await;
    let pool = database.pool();
    let (log, errors) = (Log::default(), Errors::default());
    let role = format!("shut_out_of_{}", database.name());
    let shut_out = worker(of_a_role(&database, &role).await, "a", &log, &errors);
    let present = "select count(*) from seriatim.processor where presence_key is not null";
    eventually(pool, present, 1_i64).await;
    enqueue(pool, "q", "g", 1).await;
    log.wait_for(1).await;
    let own = PgPoolOptions::new().max_connections(4);
    let other = worker(database.pool_with(own).await.unwrap(), "b", &log, &errors);
    eventually(pool, present, 2_i64).await;

    // Its other connections live on.
    by_hand(pool, format!("alter role {role} nologin")).await;
    let ended: i64 = value(
        pool,
        format!(
            "select count(pg_terminate_backend(a.pid)) from seriatim.processor p \
             join pg_stat_activity a on a.pid = p.presence_pid where a.usename = '{role}'"
        ),
    )
    .await;
    assert_eq!(ended, 1);
    // Not by the process itself either, whose claims no other process would believe.
    assert_eq!(log.wait_for(3).await, ["a begins 1", "a stops", "b begins 2"]);
    for running in [shut_out, other] {
        running.shutdown(Duration::ZERO).await;
    }
    by_hand(pool, format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_recorded_as_a_lost_lease() {
    let database = database().await;
    let pool = database.pool();
    let (log, errors) = (Log::default(), Errors::default());
    let role = format!("shut_out_of_{}", database.name());
    let running = worker(of_a_role(&database, &role).await, "a", &log, &errors);
    let present = "select count(*) from seriatim.processor where presence_key is not null";
    eventually(pool, present, 1_i64).await;
    let id = enqueue(pool, "q", "g", 1).await;
    log.wait_for(1).await;
    by_hand(pool, format!("alter role {role} nologin")).await;
    let presence = "select pg_terminate_backend(presence_pid) from seriatim.processor";
    by_hand(pool, presence).await;
    // Its other connections live on, and record the failure by token.
    eventually(pool, "select jsonb_array_length(history) from seriatim.job", 1).await;
    assert_eq!(job(pool, id).await.history[0].kind, FailureKind::LeaseLost);
    running.shutdown(Duration::ZERO).await;
    by_hand(pool, format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_claimed_before_a_death_could_be_seen() {
    let database = database().await;
    let pool = database.pool();
    let (log, errors) = (Log::default(), Errors::default());
    let id = enqueue(pool, "q", "g", 1).await;
    // No process can announce itself.
    let mut lock = pool.begin().await.unwrap();
    sqlx::query("lock table seriatim.processor in exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let own = PgPoolOptions::new().max_connections(4);
    let running = worker(database.pool_with(own).await.unwrap(), "a", &log, &errors);
    // A try that took long, on a machine with much else to do, is no failure of another kind.
    let of_presence =
        |said: &[String]| said.iter().filter(|said| said.starts_with("Presence:")).count();
    errors.0.wait("two tries have failed", |said| of_presence(said) >= 2).await;
    let said = errors.but_slow_checks();
    assert_eq!(of_presence(&said), said.len(), "{said:?}");
    let waits = job(pool, id).await;
    assert_eq!((waits.status, waits.attempts), (JobStatus::Queued, 0));
    lock.rollback().await.unwrap();
    assert_eq!(log.wait_for(1).await, ["a begins 1"]);
    running.shutdown(Duration::ZERO).await;
}

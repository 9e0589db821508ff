//! Processors' use of a pool: waiting for a connection costs no attempt, and an error says what to
//! change.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use seriatim::{FailureKind, Hold, JobStatus, Processor};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::{
    Errors, Gate, Log, PATIENCE, database, ended, handler, handler_with, job_of, jobs_where,
    nothing_remains, queue, sample, started,
};

const LEASE: Hold = Hold::Lease(Duration::from_mins(10));

/// A pool that gives up soon, as those of web services do.
fn impatient(connections: u32) -> PgPoolOptions {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(Duration::from_millis(500))
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_four_leased_handlers_share_four_connections() {
    let (database, errors) = (database().await, Errors::default());
    let pool = database.pool();
    let one = impatient(4).connect_lazy(&database.url()).unwrap();
    let run = handler(async |job, _| {
        sqlx::query("select pg_sleep(0.5)").execute(job.tx().await?).await?;
        Ok(json!("done"))
    });
    let options = queue("q").hold(LEASE).concurrency(24);
    let builder = errors.of(Processor::builder(one)).queue(options, run);
    let running = started(builder).await;
    let jobs = (0..24).map(|n| job_of("q", &format!("g{n}"), n).max_attempts(1));
    for job in seriatim::enqueue_many(pool, jobs).await.unwrap() {
        let job = ended(pool, job.id()).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 1), "{job:?}");
        assert_eq!(job.history, []);
    }
    // Once, whatever the number of handlers that waited.
    let said = errors.named("PoolExhausted");
    assert_eq!(said.len(), 1, "{said:?}");
    for part in ["\"q\"", "4 connections", "max_connections", "concurrency"] {
        assert!(said[0].contains(part), "{part} in {said:?}");
    }
    nothing_remains(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
}

async fn take_all(
    pool: &PgPool,
    connections: u32,
) -> Vec<sqlx::pool::PoolConnection<sqlx::Postgres>> {
    let mut taken = Vec::new();
    while taken.len() < connections as usize {
        // A poll has one now and then.
        taken.extend(pool.acquire().await.ok());
    }
    taken
}

/// The handler waited all the time that was left to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_while_waiting_for_a_connection_is_forgiven() {
    let (database, log, gate) = (database().await, Log::default(), Gate::default());
    let pool = database.pool();
    let one = impatient(3).connect_lazy(&database.url()).unwrap();
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data| {
        log.add(format!("{data} {}", job.attempt()));
        gate.passed().await;
        sqlx::query("select").execute(job.tx().await?).await?;
        Ok(json!("done"))
    });
    let options = queue("q").hold(LEASE).timeout(Duration::from_secs(3));
    let _running = started(Processor::builder(one.clone()).queue(options, run)).await;
    let jobs = [1, 2].map(|n| job_of("q", "g", n).max_attempts(1));
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    log.wait_for(1).await;
    let taken = take_all(&one, 3).await;
    gate.pass(3);
    crate::support::until_jobs(pool, "attempts_forgiven = 1 and status = 'queued'", 1).await;
    drop(taken);
    let first = ended(pool, jobs[0].id()).await;
    assert_eq!(first.status, JobStatus::Succeeded, "{first:?}");
    assert_eq!(first.history[0].kind, FailureKind::Released);
    assert_eq!(ended(pool, jobs[1].id()).await.attempts, 1);
    // It kept its place.
    assert_eq!(log.entries(), ["1 1", "1 2", "2 1"]);
}

/// A handler that sleeps beyond its timeout has failed, though it once waited for a connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_after_a_wait_given_up_counts() {
    let (database, log, gate) = (database().await, Log::default(), Gate::default());
    let pool = database.pool();
    let one = impatient(3).connect_lazy(&database.url()).unwrap();
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, _| {
        log.add("begun");
        gate.passed().await;
        let given_up = tokio::time::timeout(Duration::from_millis(50), job.tx()).await.is_err();
        log.add(format!("{given_up}"));
        std::future::pending::<()>().await;
        Ok(Value::Null)
    });
    let options = queue("q").hold(LEASE).timeout(Duration::from_secs(3));
    let _running = started(Processor::builder(one.clone()).queue(options, run)).await;
    let new = job_of("q", "g", 1).max_attempts(1);
    let id = seriatim::enqueue(pool, new).await.unwrap().id();
    log.wait_for(1).await;
    let taken = take_all(&one, 3).await;
    gate.pass(1);
    assert_eq!(log.wait_for(2).await[1], "true");
    drop(taken);
    let job = ended(pool, id).await;
    assert_eq!(job.error.unwrap().kind, FailureKind::Timeout);
    assert_eq!(jobs_where(pool, "attempts_forgiven > 0").await, 0);
}

/// It has a connection of the pool already, and each of the others wants one more.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_gets_no_other_connection_is_told_why() {
    let database = database().await;
    let pool = database.pool();
    let one = impatient(2).connect_lazy(&database.url()).unwrap();
    let run = handler_with(one.clone(), async |one, _, _| {
        let _kept = one.acquire().await?;
        let _another = one.acquire().await?;
        Ok(json!("done"))
    });
    let options = queue("q").concurrency(1);
    let _running = started(Processor::builder(one).queue(options, run)).await;
    let new = job_of("q", "g", 1).max_attempts(1);
    let job = ended(pool, seriatim::enqueue(pool, new).await.unwrap().id()).await;
    let failure = job.error.unwrap();
    for part in ["pool timed out", "max_connections", "job.tx()", "concurrency"] {
        assert!(failure.message.contains(part), "{part} in {failure:?}");
    }
}

/// While jobs follow each other a queue keeps connections for them. Then the application has them.
#[tokio::test(flavor = "multi_thread")]
async fn idle_queues_give_all_their_connections_back() {
    for (connections, queues) in sample([(2_u32, 1), (12, 6)]) {
        let (database, log) = (database().await, Log::default());
        let one = PgPoolOptions::new().max_connections(connections);
        let one = database.pool_with(one).await.unwrap();
        let names: Vec<String> = (0..queues).map(|n| format!("q{n}")).collect();
        let builder = names.iter().fold(Processor::builder(one.clone()), |builder, name| {
            let logs = handler_with(log.clone(), async |log, _, data| {
                log.add(data.to_string());
                Ok(Value::Null)
            });
            builder.queue(queue(name).concurrency(2), logs)
        });
        let _running = started(builder).await;
        let jobs = (0..60).map(|n| job_of(&names[n % queues], &format!("g{n}"), n));
        seriatim::enqueue_many(database.pool(), jobs).await.unwrap();
        log.wait_for(60).await;
        let deadline = Instant::now() + Duration::from_secs(10);
        while one.size() as usize > one.num_idle() {
            assert!(Instant::now() < deadline, "{} of {connections} are idle", one.num_idle());
            // The pool has no event to wait for here.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // A poll needs one for a moment.
        let taken = tokio::time::timeout(PATIENCE, take_all(&one, connections)).await.unwrap();
        drop(taken);
        // And the queues work on.
        for name in &names {
            seriatim::enqueue(&one, job_of(name, "g", 1)).await.unwrap();
        }
        log.wait_for(60 + queues).await;
    }
}

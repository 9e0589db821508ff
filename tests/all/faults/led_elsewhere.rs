//! A processor whose connections are led to another server: by the options of its pool, or by a
//! network that led to a standby for a while. No hold is judged by another server than its own
//! (P2), and work goes on where a server can be written to (P6).

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Client, FailureKind, Hold, JobStatus, NewJob, Processor, RetryPolicy, Running};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use crate::faults::second_server::{second_server, with_standby};
use crate::support::network::{Network, Weather};
use crate::support::{
    AwakeInstant, Errors, Gate, Log, STARTED, by_hand, database, drained, ended, enqueue,
    eventually, handler_with, held_up, jobs_where, queue, sample, size, started, until_caught_up,
    until_jobs, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(10))];

/// A processor whose handlers of long jobs wait at the gate.
fn worker(pool: &PgPool, hold: Hold, log: &Log, gate: &Gate, errors: &Errors) -> Running {
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data: Value| {
        log.add(format!("{data} {}", job.attempt()));
        if data == json!("long") {
            tokio::select! {
                () = gate.passed() => {}
                () = job.cancelled() => log.add("is told"),
            }
        }
        Ok(json!(null))
    });
    let builder = errors.of(Processor::builder(pool.clone()));
    builder.queue(queue("q").hold(hold), run).build().unwrap().start_when_ready()
}

/// The handlers that run on the old server end there, and those on the new one are not judged by
/// the old one's sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_led_elsewhere_drops_no_handler() {
    let servers = (Server::shared().await.unwrap(), second_server().await);
    let several_checks = Duration::from_millis(size(1_500, 2_000));
    for hold in sample(HOLDS) {
        let old = TestDatabase::create_on(&servers.0).await.unwrap();
        let new = TestDatabase::create_on(&servers.1).await.unwrap();
        let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
        let pool = old.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
        let running = worker(&pool, hold, &log, &gate, &errors);
        let first = enqueue(old.pool(), "q", "g", "long").await;
        log.wait_for(1).await;

        pool.set_connect_options(new.url().parse().unwrap());
        if hold == Hold::Transaction {
            let second = enqueue(new.pool(), "q", "g", "long").await;
            log.wait_for(2).await;
            // Several checks of the holds, which must not find anything.
            tokio::time::sleep(several_checks).await;
            gate.pass(2);
            assert_eq!(ended(new.pool(), second).await.attempts, 1);
        } else {
            // The presence stays where its leases are.
            tokio::time::sleep(several_checks).await;
            gate.pass(1);
        }
        assert_eq!(ended(old.pool(), first).await.attempts, 1);
        let third = enqueue(new.pool(), "q", "h", "long").await;
        log.wait("it runs", |said| said.len() >= if hold == Hold::Transaction { 3 } else { 2 })
            .await;
        tokio::time::sleep(several_checks).await;
        gate.pass(1);
        assert_eq!(ended(new.pool(), third).await.attempts, 1);
        let present = "select count(*) from seriatim.processor where presence_key is not null";
        eventually(new.pool(), present, 1_i64).await;
        assert!(!log.entries().contains(&String::from("is told")), "{:?}", log.entries());
        assert_eq!(errors.named("HoldLost"), [""; 0]);
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// Slots go from turn to turn on one connection while there are prefetched ones. Turns that were
/// claimed on the new server are not held on the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_that_is_led_elsewhere_costs_no_attempt() {
    let servers = (Server::shared().await.unwrap(), second_server().await);
    let old = TestDatabase::create_on(&servers.0).await.unwrap();
    let new = TestDatabase::create_on(&servers.1).await.unwrap();
    let on_new = size(300, 1_000);
    for (database, jobs) in [(&old, size(2_000, 4_000)), (&new, on_new)] {
        let jobs = (0..jobs).map(|n| NewJob::new("q", &n).group(format!("g{}", n % 50)));
        Client::default().enqueue_many(database.pool(), jobs).await.unwrap();
    }
    let (log, errors) = (Log::default(), Errors::default());
    let pool = old.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
    let run = handler_with(log.clone(), async |log, _, _: Value| {
        log.add(String::from("ran"));
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(json!(null))
    });
    let builder = errors.of(Processor::builder(pool.clone()));
    let running = started(builder.queue(queue("q").concurrency(4), run)).await;
    log.wait_for(size(100, 200)).await;
    pool.set_connect_options(new.url().parse().unwrap());
    drained(new.pool(), "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    let ran: (i64, i64) = sqlx::query_as(
        "select count(*), sum(attempts - attempts_forgiven) from seriatim.job where status = 'succeeded'",
    )
    .fetch_one(new.pool())
    .await
    .unwrap();
    assert_eq!(ran, (on_new, on_new), "{:?}", errors.0.entries());
    let left: (i64, i64) = sqlx::query_as(
        "select count(*), coalesce(sum(attempts - attempts_forgiven), 0)::int8 from seriatim.job where status = 'queued'",
    )
    .fetch_one(old.pool())
    .await
    .unwrap();
    assert!(left.0 > 0, "the pool was led elsewhere too late for this test");
    assert_eq!(left.1, 0);
    assert_eq!(errors.but_slow_checks(), [""; 0]);
}

/// A lease keeps the presence on the old server, and with it the sessions beside the pool. Jobs
/// that were prefetched on the new server are released there.
#[tokio::test(flavor = "multi_thread")]
async fn prefetched_jobs_are_released_where_they_were_claimed() {
    let servers = (Server::shared().await.unwrap(), second_server().await);
    let old = TestDatabase::create_on(&servers.0).await.unwrap();
    let new = TestDatabase::create_on(&servers.1).await.unwrap();
    let all = size(400, 1_000);
    let jobs = (0..all).map(|n| NewJob::new("q", &n).group(format!("g{}", n % 100)));
    Client::default().enqueue_many(new.pool(), jobs).await.unwrap();
    let mut released = PgListener::connect_with(new.pool()).await.unwrap();
    released.listen("seriatim.wake").await.unwrap();

    let (log, errors) = (Log::default(), Errors::default());
    let (kept_gate, gate) = (Gate::default(), Gate::default());
    let pool = old.pool_with(PgPoolOptions::new().max_connections(16)).await.unwrap();
    let leased = queue("leased").hold(Hold::Lease(Duration::from_mins(10)));
    let running = started(
        errors
            .of(Processor::builder(pool.clone()))
            .queue(leased, held_up(&log, &kept_gate))
            .queue(queue("q").time_slice(Duration::ZERO), held_up(&Log::default(), &gate)),
    )
    .await;
    let kept = enqueue(old.pool(), "leased", "g", "kept").await;
    log.wait_for(1).await;
    pool.set_connect_options(new.url().parse().unwrap());
    // After each round all slots wait, and jobs that were prefetched meanwhile wait for a slot. On
    // a late machine none may be: its jobs are not quick.
    let mut passed = 0;
    loop {
        assert!(passed + all / 5 < all, "no prefetched job was released");
        gate.pass(all / 5);
        passed += all / 5;
        until_jobs(new.pool(), "status = 'succeeded'", i64::try_from(passed).unwrap()).await;
        if tokio::time::timeout(Duration::from_secs(2), released.recv()).await.is_ok() {
            break;
        }
    }
    until_jobs(new.pool(), STARTED, 4).await;

    gate.pass(all);
    drained(new.pool(), "q").await;
    let once = jobs_where(new.pool(), "attempts = 1").await;
    assert_eq!(usize::try_from(once), Ok(all));
    kept_gate.pass(1);
    assert_eq!(ended(old.pool(), kept).await.attempts, 1);
    assert_eq!(errors.but_slow_checks(), [""; 0]);
    running.shutdown(Duration::from_secs(5)).await;
}

/// The application may give connections back that it got before the pool was led elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_connection_that_comes_back_to_the_pool_costs_no_attempt() {
    let servers = (Server::shared().await.unwrap(), second_server().await);
    let old = TestDatabase::create_on(&servers.0).await.unwrap();
    let new = TestDatabase::create_on(&servers.1).await.unwrap();
    let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
    let pool = old.pool_with(PgPoolOptions::new().max_connections(10)).await.unwrap();
    let builder = errors.of(Processor::builder(pool.clone()));
    let builder = builder.queue(queue("q").concurrency(8), held_up(&log, &gate));
    let running = started(builder).await;
    enqueue(old.pool(), "q", "first", 0).await;
    log.wait_for(1).await;
    let mut of_application = Vec::new();
    for _ in 0..8 {
        of_application.push(pool.acquire().await.unwrap());
    }
    pool.set_connect_options(new.url().parse().unwrap());
    enqueue(new.pool(), "q", "first", 0).await;
    log.wait_for(2).await;
    for mut conn in of_application {
        conn.return_to_pool().await;
    }

    let jobs = (0..100).map(|n| NewJob::new("q", &n).group(format!("g{n}")));
    Client::default().enqueue_many(new.pool(), jobs).await.unwrap();
    gate.pass(102);
    drained(new.pool(), "q").await;
    assert_eq!(jobs_where(new.pool(), "attempts = 1").await, 101);
    assert_eq!(errors.but_slow_checks(), [""; 0]);
    running.shutdown(Duration::from_secs(5)).await;
}

/// As when a standby is promoted some time after a password was changed.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_on_after_a_change_of_options_is_followed() {
    let servers = (Server::shared().await.unwrap(), second_server().await);
    let old = TestDatabase::create_on(&servers.0).await.unwrap();
    // The other server has the database by the same name.
    let other = TestDatabase::create_on(&servers.1).await.unwrap();
    let name: String = value(old.pool(), "select current_database()::text").await;
    by_hand(other.pool(), &format!("create database {name}")).await;
    let new_url = servers.1.url_of(&name);
    let new = PgPool::connect(&new_url).await.unwrap();
    Client::default().migrate(&new).await.unwrap();
    let network = Network::to(&old.url()).await;
    let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
    let pool = PgPoolOptions::new().max_connections(8);
    let pool = pool.connect(&network.url(&old.url())).await.unwrap();
    let running = worker(&pool, Hold::Transaction, &log, &gate, &errors);
    enqueue(old.pool(), "q", "g", 1).await;
    log.wait_for(1).await;
    pool.set_connect_options((*pool.connect_options()).clone().application_name("anew"));
    enqueue(old.pool(), "q", "g", 2).await;
    log.wait_for(2).await;

    network.leads_to(&new_url);
    network.is(Weather::Broken);
    let there = "select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and application_name = 'anew'";
    eventually(old.pool(), there, 0_i64).await;
    network.is(Weather::Fair);
    let id = enqueue(&new, "q", "g", 3).await;
    assert_eq!(ended(&new, id).await.status, JobStatus::Succeeded);
    running.shutdown(Duration::from_secs(5)).await;
    by_hand(other.pool(), &format!("drop database {name} with (force)")).await;
}

/// A handler that is dropped inside a query leaves its connection in an unknown state: its outcome
/// is written on another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_outcome_is_recorded_where_the_job_was_claimed() {
    let servers = (Server::shared().await.unwrap(), second_server().await);
    let old = TestDatabase::create_on(&servers.0).await.unwrap();
    let new = TestDatabase::create_on(&servers.1).await.unwrap();
    let (log, errors) = (Log::default(), Errors::default());
    let pool = old.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
    let run = handler_with(log.clone(), async |log, job, _: Value| {
        log.add("runs");
        sqlx::query("select pg_sleep(60)").execute(job.tx().await?).await?;
        Ok(json!(null))
    });
    let options = queue("q").timeout(Duration::from_secs(size(2, 5))).retry(RetryPolicy::new(1));
    let builder = errors.of(Processor::builder(pool.clone()));
    let running = started(builder.queue(options, run)).await;
    let id = enqueue(old.pool(), "q", "g", "late").await;
    log.wait_for(1).await;
    pool.set_connect_options(new.url().parse().unwrap());
    let failure = ended(old.pool(), id).await.error.unwrap();
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert_eq!(errors.but_slow_checks(), [""; 0]);
    running.shutdown(Duration::from_secs(5)).await;
}

/// As with another password: all goes on beside the handler that runs.
#[tokio::test(flavor = "multi_thread")]
async fn new_options_for_the_same_server_interrupt_nothing() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
        let pool = database.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
        let running = worker(&pool, hold, &log, &gate, &errors);
        let first = enqueue(database.pool(), "q", "g", "long").await;
        log.wait_for(1).await;
        let options: PgConnectOptions = database.url().parse().unwrap();
        pool.set_connect_options(options.application_name("anew"));
        let moved =
            "select count(*) from seriatim.processor join pg_stat_activity a on a.pid = presence_pid
            where application_name = 'anew'";
        eventually(database.pool(), moved, 1_i64).await;
        let second = enqueue(database.pool(), "q", "h", "short").await;
        assert_eq!(ended(database.pool(), second).await.attempts, 1);
        gate.pass(1);
        assert_eq!(ended(database.pool(), first).await.attempts, 1);
        assert_eq!(errors.but_slow_checks(), [""; 0]);
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// The network leads to a standby, and back, and ends no connection by that.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_left_at_once_and_reported_once() {
    let Some((server, standby)) = with_standby().await else { return };
    let database = TestDatabase::create_on(&server).await.unwrap();
    let (pool, url) = (database.pool(), database.url());
    until_caught_up(pool).await;
    for hold in sample(HOLDS) {
        let network = Network::to(&url).await;
        let through = PgPoolOptions::new().max_connections(8);
        let through = through.connect(&network.url(&url)).await.unwrap();
        let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
        let running = worker(&through, hold, &log, &gate, &errors);
        enqueue(pool, "q", "g", "long").await;
        log.wait_for(1).await;

        let mut probe = through.acquire().await.unwrap();
        network.leads_to(&standby.url_of(database.name()));
        network.is(Weather::Broken);
        while sqlx::raw_sql("select 1").execute(&mut *probe).await.is_ok() {}
        network.is(Weather::Fair);
        // The application fills the pool with connections to it.
        let mut stale = Vec::new();
        while stale.len() < 6 {
            stale.extend(through.acquire().await);
        }
        drop(stale);
        let read_only = |said: &[String]| said.iter().any(|e| e.starts_with("ReadOnly"));
        errors.0.wait("it says so", read_only).await;
        // Each part of the processor meets it many times.
        tokio::time::sleep(Duration::from_millis(size(1_500, 3_000))).await;
        assert_eq!(errors.named("ReadOnly").len(), 1);

        let ids = [enqueue(pool, "q", "h", "short").await, enqueue(pool, "q", "g", "short").await];
        gate.pass(2);
        network.leads_to(&url);
        let back = AwakeInstant::now();
        log.wait("another group's job runs", |said| said.contains(&String::from("\"short\" 1")))
            .await;
        let resumed = back.elapsed();
        println!("{hold:?}: work resumed after {resumed:.2?}");
        assert!(resumed <= Duration::from_secs(3), "{resumed:?}");
        for id in ids {
            assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
        }
        assert_eq!(errors.named("ReadOnly").len(), 1);
        running.shutdown(Duration::from_secs(5)).await;
    }
}

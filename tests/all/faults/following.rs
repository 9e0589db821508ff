//! A pool that follows the primary among several hosts: work resumes by itself after a promotion
//! (P6), and a primary that was left behind is left within seconds.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use seriatim::primary::{Follow, FollowError};
use seriatim::{Client, Hold, JobStatus, Processor, Running};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::faults::second_server::{second_server, with_standby};
use crate::support::standby::Pair;
use crate::support::{
    AwakeInstant, Errors, Gate, Log, by_hand, drained, ended, enqueue, eventually, handler_with,
    job_of, jobs_where, queue, sample, size, until_caught_up, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(10))];

/// The standby stands first: the order of hosts means nothing.
fn hosts(pair: &Pair) -> Follow {
    let (old, standby) = (pair.database.url(), pair.standby_url());
    let follow = Follow::new(standby.parse().unwrap()).host(old.parse().unwrap());
    follow.each_host(|host| host.application_name("followed"))
}

async fn followed(pair: &Pair) -> PgPool {
    hosts(pair).connect(PgPoolOptions::new().max_connections(8)).await.unwrap()
}

/// A processor whose handlers of long jobs wait at the gate, or until they are told to stop.
fn worker(pool: &PgPool, hold: Hold, log: &Log, gate: &Gate, errors: &Errors) -> Running {
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data: Value| {
        log.add(format!("{data} {}", job.attempt()));
        if data == json!("long") {
            let told = tokio::select! {
                () = gate.passed() => false,
                () = job.cancelled() => true,
            };
            if told {
                log.add("is told");
            }
        }
        Ok(json!(null))
    });
    let builder = errors.of(Processor::builder(pool.clone()));
    builder.queue(queue("q").hold(hold), run).build().unwrap().start_when_ready()
}

/// Jobs of 20 groups, each numbered in order.
async fn produce(pool: &PgPool, from: i64, to: i64) {
    let jobs = (from..to).map(|n| job_of("q", &format!("g{}", n % 20), n));
    Client::default().enqueue_many(pool, jobs).await.unwrap();
}

/// Jobs of a group ended in their order.
const OUT_OF_ORDER: &str = "select count(*) from (select id, lag(finished_at) over (partition by group_id order by id) before,
    finished_at from seriatim.job where queue = 'q') j where before > finished_at";

#[tokio::test(flavor = "multi_thread")]
async fn work_resumes_by_itself_on_the_promoted_server() {
    for hold in sample(HOLDS) {
        // A machine that is late at each of several steps is asked again.
        for promotion in 1.. {
            let Some(resumed) = resumes_on_the_promoted_server(hold).await else { return };
            println!("{hold:?}: resumed {resumed:.2?} after the new primary's first write");
            if resumed <= Duration::from_secs(3) {
                break;
            }
            assert!(promotion < 3, "{resumed:?}");
        }
    }
}

/// Returns how long after the new primary's first write work resumed; `None` where there is no
/// standby to be had.
async fn resumes_on_the_promoted_server(by: Hold) -> Option<Duration> {
    let pair = Pair::new().await?;
    let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
    let pool = followed(&pair).await;
    let running = worker(&pool, by, &log, &gate, &errors);
    let held = enqueue(&pool, "q", "long", "long").await;
    log.wait_for(1).await;
    let jobs = size(1_000, 2_000);
    produce(&pool, 0, jobs).await;
    log.wait_for(200).await;
    // In use by the application over the failover.
    let kept = pool.acquire().await.unwrap();

    let client = Client::default();
    assert_eq!(client.took_over(pair.old()).await.unwrap(), None);
    let new = pair.switch_over().await;
    let enqueued = enqueue(&new, "q", "fresh", 0).await;
    let first_write = AwakeInstant::now();
    assert_eq!(ended(&new, enqueued).await.status, JobStatus::Succeeded);
    let resumed = first_write.elapsed();
    let took_over = client.took_over(&new).await.unwrap().unwrap();
    assert_eq!(took_over.timeline, Some(2));
    // The application's own statements too.
    drop(kept);
    for _ in 0..8 {
        produce(&pool, jobs, jobs + 20).await;
    }
    gate.pass(2);
    drained(&new, "q").await;
    assert_eq!(ended(&new, held).await.status, JobStatus::Succeeded);
    assert_eq!(jobs_where(&new, "status = 'succeeded'").await, jobs + 162);
    assert_eq!(value::<i64>(&new, OUT_OF_ORDER).await, 0);
    running.shutdown(Duration::from_secs(5)).await;
    pool.close().await;
    Some(resumed)
}

/// Nobody has stopped the old primary, and it still takes writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_left_behind_is_left() {
    for hold in sample(HOLDS) {
        let Some(pair) = Pair::new().await else { return };
        // It waits for no standby.
        by_hand(pair.old(), "alter system reset synchronous_standby_names").await;
        by_hand(pair.old(), "select pg_reload_conf()").await;
        eventually(
            pair.old(),
            "select current_setting('synchronous_standby_names')",
            String::new(),
        )
        .await;
        let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
        let pool = followed(&pair).await;
        let running = worker(&pool, hold, &log, &gate, &errors);
        let held = enqueue(&pool, "q", "g", "long").await;
        log.wait_for(1).await;
        until_caught_up(pair.old()).await;
        let kept = pool.acquire().await.unwrap();

        pair.standby.promote().await.unwrap();
        let promoted = Instant::now();
        let new = PgPool::connect(&pair.standby_url()).await.unwrap();
        let attempts = if hold == Hold::Transaction {
            log.wait("its handler is dropped, and runs on the new one", |said| said.len() == 2)
                .await;
            2
        } else {
            // The claim is the same on the new one, and its lease is extended there.
            let extended = "select count(*) from seriatim.processor p join pg_stat_activity a on a.pid = p.presence_pid
                where p.presence_key is not null and a.application_name = 'followed'";
            eventually(&new, extended, 1_i64).await;
            1
        };
        println!("{hold:?}: it is left {:.2?} after the promotion", promoted.elapsed());
        let of_pool = "select count(*) from pg_stat_activity where datname = current_database()
            and application_name = 'followed'";
        eventually(pair.old(), of_pool, 0_i64).await;
        drop(kept);
        let timeline =
            "select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int";
        assert_eq!(value::<i32>(&pool, timeline).await, 2);
        gate.pass(2);
        assert_eq!(ended(&new, held).await.attempts, attempts);
        assert_eq!(jobs_where(pair.old(), "status = 'succeeded'").await, 0);
        running.shutdown(Duration::from_secs(5)).await;
        pool.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_alone_are_refused_with_each_hosts_reason() {
    let Some((_, standby)) = with_standby().await else { return };
    let standby = standby.url().parse().unwrap();
    let nobody = "postgres://postgres@127.0.0.1:1/postgres".parse().unwrap();
    let options = PgPoolOptions::new().acquire_timeout(Duration::from_millis(500));
    let refused = Follow::new(standby).host(nobody).connect(options).await.unwrap_err();
    assert!(matches!(refused, FollowError::NoPrimary { .. }));
    let message = refused.to_string();
    assert!(message.starts_with("no host can be written to: 127.0.0.1:"), "{message}");
    assert!(message.contains(" is a standby; 127.0.0.1:1: "), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_two_clusters_are_refused() {
    let one = seriatim::testing::Server::shared().await.unwrap();
    let other = second_server().await;
    let options = |url: String| url.parse().unwrap();
    let follow = Follow::new(options(one.url())).host(options(other.url()));
    let refused = follow.connect(PgPoolOptions::new()).await.unwrap_err();
    assert!(matches!(refused, FollowError::OtherCluster { .. }), "{refused}");
}

//! One failover after the other, while jobs run under both holds: nothing acknowledged is lost
//! (P3), each job has one effect (P4), in order (P1), one at a time (P2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use seriatim::primary::Follow;
use seriatim::{Hold, Processor, RetryPolicy, Running};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::support::standby::{End, Pair, Standby, free_port};
use crate::support::witness::{self, Findings, Inside, Step};
use crate::support::{by_hand, eventually, handler_with, queue, size, value};

const QUEUES: [(&str, Hold); 2] =
    [("held", Hold::Transaction), ("leased", Hold::Lease(Duration::from_mins(10)))];
const GROUPS: u32 = 10;

async fn follow(hosts: &[PgConnectOptions]) -> PgPool {
    let (first, others) = hosts.split_first().unwrap();
    let follow = others.iter().cloned().fold(Follow::new(first.clone()), Follow::host);
    // Its waits double up to a fifth of the timeout.
    let options = PgPoolOptions::new().max_connections(14).acquire_timeout(Duration::from_secs(5));
    follow.connect(options).await.unwrap()
}

async fn worker(name: &str, hosts: &[PgConnectOptions], inside: &Inside) -> Running {
    let pool = follow(hosts).await;
    let mut builder = Processor::builder(pool.clone()).node(name);
    for (name, hold) in QUEUES {
        let run =
            handler_with((inside.clone(), pool.clone()), async |(inside, pool), job, data| {
                let _entered = inside.enter(job);
                witness::take_step(job, &pool, data).await
            });
        let retry = RetryPolicy::new(1_000).base(Duration::from_millis(20));
        builder = builder.queue(queue(name).hold(hold).concurrency(3).retry(retry), run);
    }
    builder.build().unwrap().start_when_ready()
}

/// Enqueues until `stop`, one job after the other. Returns the ids that were acknowledged.
async fn produce(pool: PgPool, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let work = Step { producer: 1, n, ms: u64::from(n % 5) };
        let (queue, _) = QUEUES[n as usize % 2];
        let group = format!("g{}", n / 2 % GROUPS);
        let job = witness::job(queue, Some(&group), &work);
        if let Ok(enqueued) = seriatim::enqueue(&pool, job).await {
            acknowledged.push(enqueued.id());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    acknowledged
}

const EFFECTS: &str = "select count(*) from public.effect";

async fn more_effects(pool: &PgPool, than: i64) -> i64 {
    witness::effects_are_there(pool, than + 1).await;
    value(pool, EFFECTS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failover_after_the_other_breaks_no_promise() {
    let failovers = std::env::var("SERIATIM_TEST_FAILOVERS");
    let failovers: usize = failovers.map_or(size(1, 3), |n| n.parse().unwrap());
    let Some(pair) = Pair::new().await else { return };
    let url = pair.database.url();
    witness::prepare(pair.old()).await;
    let at = |port: u16| url.parse::<PgConnectOptions>().unwrap().port(port);
    let mut free = free_port();
    let hosts = [url.parse().unwrap(), at(pair.standby.port()), at(free)];

    let inside = Inside::default();
    let workers = [worker("one", &hosts, &inside).await, worker("two", &hosts, &inside).await];
    let stop = Arc::new(AtomicBool::new(false));
    let producer = tokio::spawn(produce(follow(&hosts).await, Arc::clone(&stop)));

    let Pair { server, database, mut standby } = pair;
    let mut primary: Option<Standby> = None;
    let mut pool = database.pool().clone();
    let mut resumed = Vec::new();
    for n in 0..failovers {
        let before: i64 = value(&pool, EFFECTS).await;
        witness::effects_are_there(&pool, before + 100).await;
        match (primary.take(), n % 2) {
            (None, _) => server.stop().await.unwrap(),
            (Some(primary), way) => {
                let end = if way == 0 { End::Stopped } else { End::Killed };
                free = primary.ends(end).await;
            }
        }
        standby.is_promoted(&url).await;
        let own = PgPoolOptions::new().max_connections(3).connect(&standby.url(&url)).await;
        pool = own.unwrap();
        eventually(&pool, "select not pg_is_in_recovery()", true).await;
        by_hand(&pool, format!("create table public.failover_{n} ()")).await;
        let first_write = Instant::now();
        let before: i64 = value(&pool, EFFECTS).await;
        more_effects(&pool, before).await;
        resumed.push(first_write.elapsed());
        let next = standby.next(&pool, free).await;
        primary = Some(std::mem::replace(&mut standby, next));
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged = producer.await.unwrap();
    witness::all_have_ended(&pool).await;
    resumed.sort_unstable();
    println!(
        "{failovers} failovers, {} jobs; work resumed after {:.1?} in the median, {:.1?} at most",
        acknowledged.len(),
        resumed[failovers / 2],
        resumed[failovers - 1]
    );
    let there = sqlx::query_scalar("select count(*) from seriatim.job where id = any($1)");
    let there: i64 = there.bind(&acknowledged).fetch_one(&pool).await.unwrap();
    assert_eq!(usize::try_from(there).unwrap(), acknowledged.len(), "acknowledged jobs are lost");
    let all: i64 = value(&pool, "select count(*) from seriatim.job").await;
    let findings = witness::findings(&pool, usize::try_from(all).unwrap()).await;
    assert_eq!(findings, Findings::default());
    assert_eq!(inside.overlaps(), [""; 0]);
    for running in workers {
        running.shutdown(Duration::from_secs(5)).await;
    }
}

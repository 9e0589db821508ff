//! A processor that has nothing to do.

use std::time::{Duration, Instant};

use serde_json::Value;
use seriatim::testing::TestDatabase;
use seriatim::{Client, Hold, Processor, ProcessorBuilder};
use sqlx::postgres::PgPoolOptions;

use crate::support::{
    Log, PATIENCE, database, drained, eventually, handler, handler_with, job_of, long, queue, size,
    started, value,
};

const QUEUES: [&str; 5] = ["a", "b", "it's c", "NULL", "e"];

/// With some queues, as users have it.
async fn processor(database: &TestDatabase, log: &Log, hold: Hold) -> ProcessorBuilder {
    let pool = database.pool_with(PgPoolOptions::new().max_connections(20)).await.unwrap();
    QUEUES.iter().fold(Processor::builder(pool), |builder, name| {
        let logs = handler_with(log.clone(), async |log, _, data| {
            log.add(data.to_string());
            Ok(Value::Null)
        });
        builder.queue(queue(name).hold(hold), logs)
    })
}

/// Whether neither queues nor maintenance have polled for two seconds (1.5 in a plain run), though
/// they did before.
/// Maintenance would poll once a second, and queues twice.
const QUIET: &str = "select coalesce(max(query_start) < clock_timestamp() - interval '2 s', false) from pg_stat_activity \
    where datname = current_database() and query ~ 'claim_jobs|awaits_maintenance' and query !~ 'pg_stat_activity'";

async fn quiet(database: &TestDatabase) {
    let deadline = Instant::now() + 4 * PATIENCE;
    let quiet = QUIET.replace("2 s", size("1.5 s", "2 s"));
    while !value::<bool>(database.pool(), &quiet).await {
        assert!(Instant::now() < deadline, "the polls do not stop");
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn one_poll_serves_all(hold: Hold) {
    let (database, log) = (database().await, Log::default());
    let _running = started(processor(&database, &log, hold).await).await;
    let silent = Client::default().notify(false);
    let alone = size(1, QUEUES.len());
    for (n, name) in QUEUES[..alone].iter().enumerate() {
        // Each would have been there four times, or twice.
        quiet(&database).await;
        silent.enqueue(database.pool(), job_of(name, "g", n)).await.unwrap();
        log.wait_for(n + 1).await;
    }
    // On time, whenever that is: no worker hears of it when it is enqueued. By the poll alone half
    // of them would be 0.25 s late. Other tests beside this one may make a round late.
    let mut ran = alone;
    let mut rounds = Vec::new();
    for _ in 0..5 {
        quiet(&database).await;
        for n in 0..2 * QUEUES.len() {
            let delay = Duration::from_millis(1_000 + n as u64 * 110);
            let delayed = job_of(QUEUES[n % QUEUES.len()], &format!("g{n}"), n).delay(delay);
            silent.enqueue(database.pool(), delayed).await.unwrap();
        }
        ran += 2 * QUEUES.len();
        log.wait_for(ran).await;
        // The end of an attempt writes when it began.
        for name in QUEUES {
            drained(database.pool(), name).await;
        }
        let late = "select array_agg(late order by late) from (select extract(epoch from last_started_at - run_at)::float8 as late \
                    from seriatim.job order by id desc limit 10) l";
        let late: Vec<f64> = value(database.pool(), late).await;
        if late[5] < 0.2 {
            return;
        }
        rounds.push(late);
    }
    panic!("late in each round: {rounds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poll_of_a_process_serves_its_queues_and_maintenance() {
    // Side by side, because nearly all of their time is waiting.
    let leases = one_poll_serves_all(Hold::Lease(Duration::from_mins(10)));
    tokio::join!(one_poll_serves_all(Hold::Transaction), leases);
}

/// Many queues share the polls of one process, and no slow poll makes them poll for themselves. A
/// measurement: `SERIATIM_IDLE_QUEUES=1000 cargo test --test all many_idle_queues -- --nocapture`.
#[tokio::test(flavor = "multi_thread")]
async fn many_idle_queues_cost_no_more_than_some() {
    let asked = std::env::var("SERIATIM_IDLE_QUEUES").ok().and_then(|n| n.parse().ok());
    let queues: usize = asked.unwrap_or(300);
    // A measurement waits for each queue's first claims, which a session that comes to rest reports
    // 10 s later. A test tries again.
    let whole = (11_000, 5_000);
    let (rest, sample) = if asked.is_some() { whole } else { size((1_000, 2_500), whole) };
    let (database, log) = (database().await, Log::default());
    let pool = database.pool_with(PgPoolOptions::new().max_connections(12)).await.unwrap();
    let mut builder = Processor::builder(pool).slots(8);
    for n in 0..queues {
        let logs = handler_with(log.clone(), async |log, job, _| {
            log.add(job.queue().to_owned());
            Ok(Value::Null)
        });
        builder = builder.queue(queue(&format!("queue {n}")).concurrency(2), logs);
    }
    let running = started(builder).await;
    tokio::time::sleep(Duration::from_millis(rest)).await;
    let transactions = "select (xact_commit + xact_rollback)::int8 from pg_stat_database where datname = current_database()";
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks = stat.split(' ').skip(13).take(2).filter_map(|n| n.parse::<u64>().ok());
        ticks.sum::<u64>()
    };
    // A poll by each queue each half second would be 10 for each in 5 s, and 5 in a short sample.
    // Beside other tests on a machine with much else to do some heartbeats are late, and queues
    // poll for themselves.
    let most = i64::try_from(3 * queues).unwrap();
    let mut samples = Vec::new();
    let (ready, used) = loop {
        let (before, cpu_before) = (value::<i64>(database.pool(), transactions).await, cpu());
        // A while without jobs is measured.
        tokio::time::sleep(Duration::from_millis(sample)).await;
        let (after, cpu_after) = (value::<i64>(database.pool(), transactions).await, cpu());
        samples.push(after - before);
        if running.is_ready() && after - before < most || samples.len() == 5 {
            break (running.is_ready(), cpu_after - cpu_before);
        }
    };
    let mut waits = Vec::new();
    for n in 0..20 {
        let name = format!("queue {}", n * queues / 20);
        let begun = Instant::now();
        seriatim::enqueue(database.pool(), job_of(&name, "g", n)).await.unwrap();
        log.wait_for(n + 1).await;
        waits.push(begun.elapsed());
    }
    let (worst, mean) = (waits.iter().max().unwrap(), waits.iter().sum::<Duration>() / 20);
    println!(
        "{queues} queues: {samples:?} transactions in {sample} ms, {} % of a core, a job after {mean:.0?}, {worst:.0?} at worst, ready {ready}",
        used * 1_000 / sample,
    );
    assert!(samples.last().is_some_and(|last| *last < most), "{samples:?} transactions");
    assert!(ready, "{:?}", running.health());
    // Other tests beside this one may make one late.
    waits.sort_unstable();
    assert!(waits[10] < Duration::from_millis(300), "{waits:?}");
}

/// Its connection may have died unheard of, and others may not check for it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_looks_by_itself_now_and_then() {
    // A worker looks once in half a minute, even if its poll interval is shorter.
    if !long() {
        return;
    }
    let database = database().await;
    let one = database.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
    let handler = handler(async |_, _| Ok(Value::Null));
    let _running = started(Processor::builder(one).queue(queue("q"), handler)).await;
    let claims = "select exists (select from pg_stat_activity where datname = current_database() and query ~ 'claim_jobs' \
                  and query !~ 'pg_stat_activity' and query_start > clock_timestamp() - interval '2 s')";
    for claims_now in [true, false] {
        eventually(database.pool(), claims, claims_now).await;
    }
    let begun = Instant::now();
    while !value::<bool>(database.pool(), claims).await {
        assert!(begun.elapsed() < PATIENCE * 2, "it does not look");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_presence_each_queue_looks_by_itself() {
    let (database, log) = (database().await, Log::default());
    let _running =
        started(processor(&database, &log, Hold::Transaction).await.presence(false)).await;
    let silent = Client::default().notify(false);
    eventually(database.pool(), "select exists (select from seriatim.processor)", true).await;
    for (n, name) in QUEUES.iter().enumerate() {
        silent.enqueue(database.pool(), job_of(name, "g", n)).await.unwrap();
        log.wait_for(n + 1).await;
    }
}

/// While jobs come one after the other a queue keeps their connections. The next poll of this one
/// is an hour away.
#[tokio::test(flavor = "multi_thread")]
async fn connections_go_back_to_the_pool_when_no_more_jobs_come() {
    let (database, log) = (database().await, Log::default());
    let pool = database.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
    let handler = handler_with(log.clone(), async |log, _, data| {
        log.add(data.to_string());
        Ok(Value::Null)
    });
    let builder = Processor::builder(pool.clone()).poll_interval(Duration::from_hours(1));
    let _running = started(builder.queue(queue("q").concurrency(8), handler)).await;
    for n in 0..50 {
        let jobs = (0..8).map(|g| job_of("q", &format!("g{g}"), n * 8 + g));
        seriatim::enqueue_many(database.pool(), jobs).await.unwrap();
    }
    log.wait_for(400).await;
    let taken = || pool.size() as usize - pool.num_idle();
    let deadline = Instant::now() + PATIENCE;
    while taken() > 0 {
        assert!(Instant::now() < deadline, "{} connections are kept", taken());
        tokio::task::yield_now().await;
    }
}

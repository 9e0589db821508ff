//! Producers, workers and requests at random, checked by an oracle (P1, P2, P3, P5, P10).
//!
//! `SERIATIM_STRESS_SECONDS`, `SERIATIM_STRESS_GROUPS` and `SERIATIM_STRESS_PAUSE` (of a producer,
//! in ms) set its length and its shape, `SERIATIM_STRESS_SEED` its seed. The schedule of the
//! sessions stays the machine's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Row};
use tokio::time::{Instant, sleep};

use crate::interleavings::support::oracle::Oracle;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::number;
use crate::interleavings::support::size::size;
use crate::interleavings::support::stress::Stress;
use crate::interleavings::support::{producers, workers};
use crate::store::{Acting, Store};
use crate::testing::TestDatabase;
use crate::{QueueOptions, RetryPolicy};

/// Limit of the time without progress in the drain: some claims are dead, and wait for a lease and
/// a grace.
const DRAIN: Duration = Duration::from_secs(20);

/// Lock waits that were seen: the waiting session, the lock, the statement, the blockers.
type Waits = BTreeMap<String, u32>;

/// Polls for sessions that wait for a lock, as often as it can.
async fn watch(stress: Arc<Stress>) -> Waits {
    let mut conn = stress.session("watcher").await;
    let mut waits = Waits::new();
    let sql = "select a.application_name, a.wait_event, left(a.query, 60), \
               (select string_agg(b.application_name || ': ' || left(b.query, 60), ' / ') \
                from pg_stat_activity b where b.pid = any(pg_blocking_pids(a.pid))) \
               from pg_stat_activity a where a.datname = current_database() \
               and a.wait_event_type = 'Lock' and cardinality(pg_blocking_pids(a.pid)) > 0";
    while !stress.drained.load(Ordering::Relaxed) {
        for row in sqlx::query(sql).fetch_all(&mut conn).await.unwrap() {
            let text = |n: usize| row.get::<Option<String>, _>(n).unwrap_or_default();
            let wait = format!("{} waits ({}) in {} for {}", text(0), text(1), text(2), text(3));
            *waits.entry(wait).or_default() += 1;
        }
    }
    waits
}

fn setting(name: &str) -> Option<u64> {
    let name = format!("SERIATIM_STRESS_{name}");
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the stress and prints a summary. Returns the violations, and the lock waits that were seen.
async fn stress(seconds: u64, groups: u64, producer_pause_ms: u64) -> (Vec<String>, Waits) {
    let seconds = setting("SECONDS").unwrap_or(seconds);
    let groups = setting("GROUPS").unwrap_or(groups);
    let producer_pause_ms = setting("PAUSE").unwrap_or(producer_pause_ms);
    let seed = setting("SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut rng = fastrand::Rng::with_seed(seed);
    let stress = Arc::new(Stress {
        db: TestDatabase::create().await.unwrap(),
        store: Store::default_schema(),
        options: QueueOptions::new(Q).retry(
            RetryPolicy::new(3).base(Duration::from_millis(5)).cap(Duration::from_millis(20)),
        ),
        oracle: Oracle::default(),
        groups,
        producer_pause_ms,
        stop: AtomicBool::new(false),
        drained: AtomicBool::new(false),
    });
    let watcher = tokio::spawn(watch(Arc::clone(&stress)));
    let mut producers = Vec::new();
    let mut others = Vec::new();
    for _ in 0..3 {
        producers.push(tokio::spawn(producers::produce(Arc::clone(&stress), rng.fork())));
        others.push(tokio::spawn(workers::work(Arc::clone(&stress), rng.fork())));
    }
    producers.push(tokio::spawn(producers::ask(Arc::clone(&stress), rng.fork())));
    others.push(tokio::spawn(producers::run_maintenance(Arc::clone(&stress), rng.fork())));
    sleep(Duration::from_secs(seconds)).await;
    stress.stop.store(true, Ordering::Relaxed);
    for task in producers {
        task.await.unwrap();
    }
    drain(&stress).await;
    stress.drained.store(true, Ordering::Relaxed);
    for task in others {
        task.await.unwrap();
    }
    let waits = watcher.await.unwrap();
    let (jobs, runs, counts, violations) = stress.oracle.close();
    println!(
        "seed {seed}, {seconds} s, {groups} groups, pause {producer_pause_ms} ms: {jobs} jobs, {runs} runs, {counts:?}"
    );
    println!("lock waits seen: {waits:#?}");
    println!("violations: {violations:#?}");
    Arc::try_unwrap(stress).ok().unwrap().db.remove().await.unwrap();
    (violations, waits)
}

/// Waits until no job, flag or row is left; records a violation if that does not come.
async fn drain(stress: &Stress) {
    let mut conn = stress.session("drain").await;
    let (mut deadline, mut least) = (Instant::now() + DRAIN, i64::MAX);
    let left = |table: &str, condition: &str| {
        format!("select count(*) from seriatim.{table} where {condition}")
    };
    let queries = [
        left("job", "status in ('queued', 'started')"),
        left("job", "flagged"),
        left("queue_group", "true"),
    ];
    loop {
        // A group may be halted at the very end.
        for halted in stress.store.halted_groups(&mut conn, Q).await.unwrap() {
            let unhalted =
                stress.store.unhalt_group(&mut conn, Q, &halted.group, Acting::default()).await;
            unhalted.unwrap();
        }
        let mut counts = [0; 3];
        for (count, sql) in counts.iter_mut().zip(&queries) {
            *count = number(&mut conn, sql).await;
        }
        if counts == [0; 3] {
            return;
        }
        if counts[0] < least {
            (deadline, least) = (Instant::now() + DRAIN, counts[0]);
        }
        if Instant::now() > deadline {
            let rows = sqlx::query_scalar::<_, String>(AssertSqlSafe(
                "select row(j.id, j.group_id, j.status, j.flagged, j.run_at, g.*)::text \
                 from seriatim.job j full join seriatim.queue_group g using (queue, group_id) \
                 where j.id is null or j.flagged or j.status in ('queued', 'started') limit 20"
                    .to_owned(),
            ))
            .fetch_all(&mut conn)
            .await
            .unwrap();
            let what = format!("left over [unfinished, flagged, rows] {counts:?}: {rows:#?}");
            stress.oracle.violation(what);
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_overlaps_overtakes_or_is_lost_at_random() {
    let (violations, waits) = stress(size(2, 6), 20, 40).await;
    assert!(violations.is_empty(), "{violations:#?}");
    let wrong: Vec<_> = waits.keys().filter(|wait| !is_harmless(wait)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns whether a wait is one of these, all of them short:
/// - for another session's extension of a table by a page ("extend"), which no transaction keeps;
/// - for another session's commit of a notification ("object"): the server commits these one by
///   one, whether a `COMMIT` ends the transaction or a claim or an unhalt that is one by itself;
/// - of a request that unhalts a group, for a claim that has its row locked;
/// - of a claim, if `SKIP LOCKED` does not skip (see `store/session.rs`): 100 ms at most, then it
///   claims again.
fn is_harmless(wait: &str) -> bool {
    let request = wait.starts_with("operator") || wait.starts_with("drain");
    wait.contains("waits (extend)")
        || wait.contains("waits (object)")
        || request && wait.contains(" for claimer")
        || wait.starts_with("claimer waits (transactionid)")
        // The blocker was gone when the watcher asked for it.
        || wait.ends_with(" for ")
}

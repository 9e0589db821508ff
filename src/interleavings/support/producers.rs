//! The stress's producers, its operator and its maintenance.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::sleep;

use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::run;
use crate::interleavings::support::stress::Stress;
use crate::store::{Acting, begin_short};
use crate::{Client, NewJob};

pub(crate) fn pause(rng: &mut fastrand::Rng, most_ms: u64) -> Duration {
    Duration::from_micros(rng.u64(0..=most_ms * 1000))
}

fn some_jobs(stress: &Stress, rng: &mut fastrand::Rng) -> Vec<NewJob> {
    let count = [1, 1, 1, 2, 4][rng.usize(0..5)];
    (0..count)
        .map(|_| {
            let job = NewJob::new(Q, &1).group(stress.some_group(rng));
            match rng.u8(0..10) {
                0 => job.delay(pause(rng, 100)),
                1 => job.max_attempts(1),
                _ => job,
            }
        })
        .collect()
}

/// Enqueues in `conn`'s transaction; returns the jobs with the time at which that began.
pub(crate) async fn enqueue_some(
    stress: &Stress,
    rng: &mut fastrand::Rng,
    conn: &mut PgConnection,
) -> Result<Vec<(u64, i64)>, crate::EnqueueError> {
    let jobs = some_jobs(stress, rng);
    let began = stress.oracle.begin_enqueue();
    let client = Client::default().notify(rng.bool());
    let enqueued = client.enqueue_many(conn, jobs).await?;
    Ok(enqueued.iter().map(|job| (began, job.id())).collect())
}

/// Enqueues at any isolation level, with old snapshots, open transactions, savepoints and
/// rollbacks.
pub(crate) async fn produce(stress: Arc<Stress>, mut rng: fastrand::Rng) {
    let mut conn = stress.session("producer").await;
    while !stress.stop.load(Ordering::Relaxed) {
        if let Err(error) = produce_once(&stress, &mut rng, &mut conn).await {
            stress.oracle.violation(format!("an enqueue failed: {error}"));
            conn = stress.session("producer").await;
        }
        sleep(pause(&mut rng, stress.producer_pause_ms)).await;
    }
}

async fn produce_once(
    stress: &Stress,
    rng: &mut fastrand::Rng,
    conn: &mut PgConnection,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let level = ["read committed", "repeatable read", "serializable"][rng.usize(0..3)];
    let begin = format!("begin isolation level {level}");
    let mut tx = conn.begin_with(AssertSqlSafe(begin)).await?;
    if rng.u8(0..3) == 0 {
        run(&mut tx, "select count(*) from seriatim.queue_group").await;
        sleep(pause(rng, 10)).await;
    }
    let mut jobs = enqueue_some(stress, rng, &mut tx).await?;
    if rng.u8(0..5) == 0 {
        let mut savepoint = tx.begin().await?;
        enqueue_some(stress, rng, &mut savepoint).await?;
        savepoint.rollback().await?;
        jobs.extend(enqueue_some(stress, rng, &mut tx).await?);
    }
    if rng.u8(0..3) == 0 {
        sleep(pause(rng, 30)).await;
    }
    if rng.u8(0..7) == 0 {
        tx.rollback().await?;
        stress.oracle.count("enqueues rolled back");
    } else {
        tx.commit().await?;
        stress.oracle.committed(&jobs);
    }
    Ok(())
}

/// Cancels, retries, skips and unhalts, in transactions that stay open for a moment and may be
/// rolled back.
pub(crate) async fn ask(stress: Arc<Stress>, mut rng: fastrand::Rng) {
    let mut conn = stress.session("operator").await;
    while !stress.stop.load(Ordering::Relaxed) {
        if let Err(error) = ask_once(&stress, &mut rng, &mut conn).await {
            stress.oracle.violation(format!("a request failed: {error}"));
            conn = stress.session("operator").await;
        }
        sleep(pause(&mut rng, 40)).await;
    }
}

async fn pick(conn: &mut PgConnection, condition: &str) -> Result<Option<i64>, sqlx::Error> {
    let sql = format!("select id from seriatim.job where {condition} order by random() limit 1");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(conn).await
}

async fn ask_once(
    stress: &Stress,
    rng: &mut fastrand::Rng,
    conn: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    let store = &stress.store;
    let mut tx = conn.begin().await?;
    let request = rng.u8(0..10);
    let (what, done) = match request {
        0..=5 => {
            let condition = [
                "status = 'queued'",
                "seriatim.job_state(status, queue, group_id, id) = 'started'",
                "flagged",
            ][rng.usize(0..3)];
            match pick(&mut tx, condition).await? {
                Some(job) => {
                    ("cancelled", store.cancel(&mut *tx, job, Acting::default()).await?.done)
                }
                None => ("cancelled", false),
            }
        }
        6 => match pick(&mut tx, "status = 'queued'").await? {
            Some(job) => ("skipped", store.skip(&mut *tx, job, Acting::default()).await?.done),
            None => ("skipped", false),
        },
        _ => match pick(&mut tx, "status in ('failed', 'cancelled')").await? {
            Some(job) => {
                stress.oracle.requeue(job);
                ("retried", store.retry(&mut *tx, job, Acting::default()).await?.done)
            }
            None => ("retried", false),
        },
    };
    if rng.u8(0..3) == 0 {
        sleep(pause(rng, 15)).await;
    }
    if rng.u8(0..5) == 0 {
        return tx.rollback().await;
    }
    tx.commit().await?;
    if done {
        stress.oracle.count(what);
    }
    for halted in store.halted_groups(&mut *conn, Q).await? {
        store.unhalt_group(&mut *conn, Q, &halted.group, Acting::default()).await?;
        stress.oracle.count("unhalted");
    }
    Ok(())
}

/// Runs maintenance, and the sweep, which must find nothing; ends some leases and graces before
/// their time.
pub(crate) async fn run_maintenance(stress: Arc<Stress>, mut rng: fastrand::Rng) {
    let mut conn = stress.session("maintenance").await;
    while !stress.drained.load(Ordering::Relaxed) {
        if let Err(error) = maintain_once(&stress, &mut conn).await {
            stress.oracle.violation(format!("maintenance failed: {error}"));
            conn = stress.session("maintenance").await;
        }
        let lapse = "update seriatim.queue_group g set ready_at = clock_timestamp() from \
            (select group_id from seriatim.queue_group where claim is not null and random() < 0.3 \
             for no key update skip locked) lapsed where g.group_id = lapsed.group_id";
        let lapsed = run(&mut conn, lapse).await;
        for _ in 0..lapsed {
            stress.oracle.count("leases cut short");
        }
        sleep(pause(&mut rng, 60)).await;
    }
}

async fn maintain_once(stress: &Stress, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = begin_short(conn).await?;
    stress.store.settle_requests(&mut tx).await?;
    tx.commit().await?;
    let mut tx = begin_short(conn).await?;
    let stranded = "select g.group_id from (select distinct group_id from seriatim.job \
        where queue = 'q' and group_id is not null and status in ('queued', 'started')) g \
        where seriatim.rescue('q', g.group_id)";
    for group in sqlx::query_scalar::<_, String>(stranded).fetch_all(&mut *tx).await? {
        stress.oracle.violation(format!("the sweep found {group} stranded"));
    }
    tx.rollback().await
}

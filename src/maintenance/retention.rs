//! Retention: deletes finished jobs, deduplication ids and pauses whose time is over, and the
//! progress of jobs that cannot run again.

use std::time::Duration;

use sqlx::PgConnection;

use crate::job::job::JobStatus;
use crate::job::queue_options::QueueOptions;
use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the rows that one transaction deletes or looks at: finished jobs of each status, ids, or
/// settings of groups.
const BATCH: i64 = 500;
/// Bounds the transactions of one round, per queue.
const BATCHES: usize = 20;

/// Deletes jobs that the retention of `queue` no longer keeps, in small batches, and notes the
/// retention for other processes. Returns the number of jobs.
pub(crate) async fn prune(
    store: &Store,
    conn: &mut PgConnection,
    queue: &QueueOptions,
) -> Result<u64, sqlx::Error> {
    let statuses = [JobStatus::Succeeded, JobStatus::Failed, JobStatus::Cancelled];
    let kept = statuses.into_iter().zip(queue.kept_ms());
    let mut left: Vec<_> = kept
        .filter_map(|(status, ms)| Some((status, Duration::from_millis(ms?.unsigned_abs()))))
        .collect();
    let note = async |conn: &mut PgConnection| store.note_retention(conn, queue).await;
    as_leader(store, conn, note).await?;
    let mut total = 0;
    for _ in 0..BATCHES {
        if left.is_empty() {
            break;
        }
        let mut more = Vec::new();
        let batch = async |conn: &mut PgConnection| {
            for &(status, age) in &left {
                let deleted = store.prune(conn, queue.name(), status, age, BATCH).await?;
                total += deleted;
                if deleted >= BATCH.unsigned_abs() {
                    more.push((status, age));
                }
            }
            Ok(())
        };
        as_leader(store, conn, batch).await?;
        left = more;
    }
    Ok(total)
}

/// Deletes deduplication ids whose window has ended, in small batches.
pub(crate) async fn forget_expired(
    store: &Store,
    conn: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    for _ in 0..BATCHES {
        let mut deleted = 0;
        let batch = async |conn: &mut PgConnection| {
            deleted = store.forget_expired(conn, BATCH).await?;
            Ok(())
        };
        as_leader(store, conn, batch).await?;
        if deleted < BATCH.unsigned_abs() {
            break;
        }
    }
    Ok(())
}

/// Deletes settings of groups whose pauses have ended, in small batches from `after` on, a queue
/// and a group.
pub(crate) async fn forget_pauses(
    store: &Store,
    conn: &mut PgConnection,
    after: &mut (String, String),
) -> Result<(), sqlx::Error> {
    for _ in 0..BATCHES {
        let (queue, group) = &*after;
        let mut last = None;
        let batch = async |conn: &mut PgConnection| {
            last = store.forget_pauses(conn, (queue, group), BATCH).await?;
            Ok(())
        };
        as_leader(store, conn, batch).await?;
        let more = last.is_some();
        *after = last.unwrap_or_default();
        if !more {
            break;
        }
    }
    Ok(())
}

/// Deletes the progress and checkpoints of jobs that have succeeded or are gone, in small batches
/// from the job `after` on. A worker deletes those of its own jobs as they succeed; left are those
/// of receivers, of jobs that were deleted, and of workers that died between the two.
pub(crate) async fn forget_progress(
    store: &Store,
    conn: &mut PgConnection,
    after: &mut i64,
) -> Result<(), sqlx::Error> {
    for _ in 0..BATCHES {
        let mut last = None;
        let batch = async |conn: &mut PgConnection| {
            last = store.forget_left_progress(conn, *after, BATCH).await?;
            Ok(())
        };
        as_leader(store, conn, batch).await?;
        *after = last.unwrap_or(i64::MIN);
        if last.is_none() {
            break;
        }
    }
    Ok(())
}

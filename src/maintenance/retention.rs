//! Retention: deletes deduplication ids and pauses whose time has ended, and the progress of jobs
//! that cannot run again. `queues.rs` has that of finished jobs.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the rows that one transaction deletes or looks at: ids, or settings of groups.
const BATCH: i64 = 500;
/// Bounds the transactions of one round.
const BATCHES: usize = 20;

/// Deletes deduplication ids whose window has ended, and unique keys of ended jobs, in small
/// batches.
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

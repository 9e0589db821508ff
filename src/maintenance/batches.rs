//! Batches whose jobs have ended start their follow-ups.
//!
//! Any number of processes may do so at once: each batch is ended by the one that locks its row.
//! Nothing is kept in memory between two ticks.

use sqlx::PgConnection;

use crate::job::batch::BatchState;
use crate::maintenance::leader::as_leader;
use crate::store::{Store, gave_up_waiting, in_short_tx};

/// Bounds the transactions of one tick.
const LOOKS: usize = 20;
/// Bounds the batches that one transaction of a round notes or forgets.
const BATCH: i32 = 500;

/// The effect of a look at batches.
#[derive(Debug, Default)]
pub(crate) struct EndedBatches {
    /// The number of follow-ups that were enqueued.
    pub(crate) follow_ups: u64,
    /// The batches whose follow-up the database refused, and why.
    pub(crate) refused: Vec<(i64, String)>,
}

/// Ends the batches whose jobs have ended.
pub(crate) async fn end_batches(
    store: &Store,
    conn: &mut PgConnection,
) -> Result<EndedBatches, sqlx::Error> {
    let mut ended = EndedBatches::default();
    for _ in 0..LOOKS {
        let look = in_short_tx(conn, async |conn| {
            let looked = store.end_batches(conn).await?;
            Ok((looked, store.many_batches_are_due(conn).await?))
        });
        let (looked, more) = match look.await {
            Ok(looked) => looked,
            // Nothing was done; what is due stays for the next tick.
            Err(error) if gave_up_waiting(&error) => break,
            Err(error) => return Err(error),
        };
        for batch in looked {
            let (id, name) = (batch.batch, &*batch.name);
            match batch.state {
                BatchState::Ended => {
                    ended.follow_ups += 1;
                    tracing::info!(batch = id, name, job = batch.follow_up, "batch ended");
                }
                BatchState::Failed => {
                    tracing::warn!(
                        batch = id,
                        name,
                        "batch failed: all its jobs have ended, and not all have succeeded; retry or redrive them, or abandon it"
                    );
                }
                _ => ended.refused.push((id, batch.error.unwrap_or_default())),
            }
        }
        if !more {
            break;
        }
    }
    Ok(ended)
}

/// Notes sealed batches to be looked at, whatever their jobs have left, and forgets those that
/// nobody needs any more: in small batches from `after` on.
pub(crate) async fn tend_batches(
    store: &Store,
    conn: &mut PgConnection,
    after: &mut (i64, i64),
) -> Result<(), sqlx::Error> {
    let tend = async |conn: &mut PgConnection| {
        after.0 = store.note_batches(&mut *conn, after.0, BATCH).await?.unwrap_or(0);
        after.1 = store.forget_batches(conn, after.1, BATCH).await?.unwrap_or(0);
        Ok(())
    };
    as_leader(store, conn, tend).await.map(drop)
}

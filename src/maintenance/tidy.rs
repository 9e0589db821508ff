//! Flags that call for nothing, in queues that receivers alone serve.

use sqlx::PgConnection;

use crate::store::{Store, begin_short};

/// Bounds the transactions of one tick, a tenth of a second each.
const BATCHES: usize = 10;

/// Clears flags where receives have found more than they can read. One process does so at a time:
/// others find it locked, and return.
pub(crate) async fn tidy(store: &Store, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    for _ in 0..BATCHES {
        let mut tx = begin_short(conn).await?;
        let more = store.tidy(&mut tx).await?;
        tx.commit().await?;
        if !more {
            break;
        }
    }
    Ok(())
}

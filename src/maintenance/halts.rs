//! Halts at their deadline, and jobs that step aside in batches.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the transactions that one tick makes for halted groups.
const BATCHES: usize = 50;

/// Ends halts whose deadline has passed, and parks jobs, in small transactions.
pub(crate) async fn end_halts(store: &Store, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    for _ in 0..BATCHES {
        let mut more = false;
        let batch = async |conn: &mut PgConnection| {
            more = store.end_halts(conn).await?;
            Ok(())
        };
        as_leader(store, conn, batch).await?;
        if !more {
            break;
        }
    }
    Ok(())
}

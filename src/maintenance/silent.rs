//! Runs of frozen processes, which no timeout ends.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the runs that one round ends: each may wait a second for the end of a session.
const RUNS: usize = 10;

/// Ends the runs of silent processes that are past their timeouts, each in a transaction.
pub(crate) async fn abort_silent_runs(
    store: &Store,
    conn: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    for _ in 0..RUNS {
        let mut more = false;
        let one = async |conn: &mut PgConnection| {
            more = store.abort_silent_run(conn).await?;
            Ok(())
        };
        as_leader(store, conn, one).await?;
        if !more {
            break;
        }
    }
    Ok(())
}

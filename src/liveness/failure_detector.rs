//! The failure detector: suspects the claims of processes whose presence locks are free.
//!
//! Every processor with a heartbeat runs it. A suspected claim is taken over a grace later, unless
//! its own process clears the suspicion before.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::{Store, gave_up_waiting, in_short_tx};

/// Suspects the claims of processors, other than `own`, whose presence locks are free. `settled`
/// and `server` say whether the others had the time to come back after a restart of the server.
pub(crate) async fn suspect_dead_processors(
    store: &Store,
    conn: &mut PgConnection,
    own: i64,
    settled: bool,
    server: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let suspected = in_short_tx(conn, async |conn| {
        store.suspect_dead_processors(conn, own, settled, server).await
    })
    .await;
    let suspected = match suspected {
        // Another transaction has the rows; the next tick tries again.
        Err(error) if gave_up_waiting(&error) => return Ok(()),
        suspected => suspected?,
    };
    if suspected > 0 {
        tracing::info!(suspected, "claims of dead processors will be taken over");
    }
    Ok(())
}

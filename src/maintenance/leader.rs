//! The leader lock: one process at a time does maintenance.

use sqlx::PgConnection;

use crate::store::{Store, begin_short};

/// Runs `work` in a short transaction if no other process holds the leader lock. Returns whether
/// it ran.
pub(crate) async fn as_leader(
    store: &Store,
    conn: &mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<(), sqlx::Error>,
) -> Result<bool, sqlx::Error> {
    let mut tx = begin_short(conn).await?;
    let leads = store.lock_maintenance(&mut tx).await?;
    if leads {
        work(&mut tx).await?;
    }
    tx.commit().await?;
    Ok(leads)
}

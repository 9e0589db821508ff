//! Tasks that move jobs between queues, a batch at a time.

use sqlx::PgConnection;

use crate::store::{Store, begin_short};

/// Carries all running tasks one batch further. Several processes may do so at once: each task is
/// locked, and skipped by others.
pub(crate) async fn run_move_tasks(
    store: &Store,
    conn: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    let mut tx = begin_short(conn).await?;
    store.run_move_tasks(&mut *tx).await?;
    tx.commit().await
}

//! Tasks that move jobs between queues, a batch at a time.

use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;

use crate::store::{Store, begin_short};

/// Carries all running tasks one batch further. Several processes may do so at once: each task is
/// locked, and skipped by others.
pub(crate) async fn run_move_tasks(
    store: &Store,
    conn: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    begin_short(conn).await?;
    store.run_move_tasks(&mut *conn).await?;
    PgTransactionManager::commit(conn).await
}

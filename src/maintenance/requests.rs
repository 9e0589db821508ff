//! Requests about queued jobs that met a locked row: maintenance carries them out.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Carries out requests about queued jobs. Returns whether this process leads.
pub(crate) async fn settle_requests(
    store: &Store,
    conn: &mut PgConnection,
) -> Result<bool, sqlx::Error> {
    as_leader(store, conn, async |conn| store.settle_requests(conn).await.map(drop)).await
}

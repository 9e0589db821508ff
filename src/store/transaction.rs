//! Transactions that stay open across function calls.
//!
//! A hold keeps its transaction from the claim to the settle, on a connection that the slot keeps
//! for its next job, so the borrow of a [`sqlx::Transaction`] is too short for it. sqlx must count
//! it all the same: a handler that calls `begin()` on the connection would otherwise begin a
//! transaction instead of a savepoint, and its commit would release the job's locks. sqlx has no
//! public call that ends a counted transaction without its [`sqlx::Transaction`]. The trait used
//! here is public only in `sqlx-core`, and no other file imports that crate.
//!
//! Everything else uses [`begin_short`](crate::store::begin_short) and the like, whose
//! transactions roll back when they are dropped.

use sqlx::postgres::PgTransactionManager;
use sqlx::{AssertSqlSafe, PgConnection, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

/// Begins a transaction by `statement`, and counts it. Fails if one is counted already.
pub(crate) async fn begin(conn: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    PgTransactionManager::begin(conn, Some(AssertSqlSafe(statement).into_sql_str())).await
}

/// Commits the transaction, or releases the innermost savepoint. Does nothing if none is counted.
pub(crate) async fn commit(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    PgTransactionManager::commit(conn).await
}

/// Rolls back the transaction, or to the innermost savepoint. Does nothing if none is counted.
pub(crate) async fn rollback(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    PgTransactionManager::rollback(conn).await
}

/// Returns how many transactions are counted: 1 for a transaction, and 1 for each savepoint in it.
pub(crate) fn depth(conn: &PgConnection) -> usize {
    PgTransactionManager::get_transaction_depth(conn)
}

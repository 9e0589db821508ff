//! Counters of the server: of the database, and the WAL of all.

use std::time::Duration;

use sqlx::{PgPool, Row as _};
use tokio::time::sleep;

use crate::Result;
use crate::figures::float;
use crate::report::Row;
use crate::statements;

/// A session reports its counts at most once a second, when a transaction ends; a session that
/// ends, at once.
const TOLD: Duration = Duration::from_millis(1_200);

const READ: &str = "select \
    (select xact_commit + xact_rollback from pg_stat_database where datname = current_database()) transactions, \
    (pg_current_wal_insert_lsn() - '0/0')::bigint wal, \
    (select wal_fpi::bigint from pg_stat_wal) pages, \
    coalesce(sum(n_tup_ins), 0)::bigint inserted, coalesce(sum(n_tup_upd), 0)::bigint updated, \
    coalesce(sum(n_tup_hot_upd), 0)::bigint hot, coalesce(sum(n_tup_del), 0)::bigint deleted, \
    coalesce(sum(n_dead_tup), 0)::bigint dead from pg_stat_user_tables";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    transactions: i64,
    wal: i64,
    /// Full images of pages in the WAL: the first change of each page after a checkpoint.
    pages: i64,
    inserted: i64,
    updated: i64,
    hot: i64,
    deleted: i64,
    dead: i64,
    /// Statements that this process sent.
    statements: u64,
}

impl Counters {
    /// Reads the counters when all sessions have reported theirs.
    pub(crate) async fn read(pool: &PgPool) -> Result<Self> {
        sleep(TOLD).await;
        let row = sqlx::query(READ).fetch_one(pool).await?;
        Ok(Self {
            transactions: row.try_get("transactions")?,
            wal: row.try_get("wal")?,
            pages: row.try_get("pages")?,
            inserted: row.try_get("inserted")?,
            updated: row.try_get("updated")?,
            hot: row.try_get("hot")?,
            deleted: row.try_get("deleted")?,
            dead: row.try_get("dead")?,
            statements: statements::count(),
        })
    }

    /// Adds the change since `before` to the row, divided by `of`.
    pub(crate) fn since(self, before: Self, of: f64, row: Row) -> Row {
        let part = |now: i64, then: i64| float(now.abs_diff(then)) / of;
        row.figure("statements", float(self.statements - before.statements) / of)
            .figure("transactions", part(self.transactions, before.transactions))
            .figure("WAL bytes", part(self.wal, before.wal))
            .figure("page images", part(self.pages, before.pages))
            .figure("inserts", part(self.inserted, before.inserted))
            .figure("updates", part(self.updated, before.updated))
            .figure("hot", part(self.hot, before.hot))
            .figure("deletes", part(self.deleted, before.deleted))
            .figure("dead left", part(self.dead, 0))
    }
}

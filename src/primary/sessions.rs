//! The sessions of a pool, to end those on a server that a promotion has left behind.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use sqlx::{AssertSqlSafe, PgConnection};

/// How many are known: more than a process has open.
const KNOWN: usize = 4096;

/// A session of some server: its process id, and its begin in microseconds, which tells it from
/// others of that id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) pid: i32,
    pub(super) since: i64,
}

/// The latest sessions that were opened.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<VecDeque<Session>>);

impl Sessions {
    pub(super) fn opened(&self, session: Session) {
        // Nothing panics under the lock.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN {
            known.pop_front();
        }
        known.push_back(session);
    }

    /// Ends those that are of this connection's server. Returns how many were.
    pub(super) async fn end_all(&self, conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
        let known: Vec<String> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().map(|Session { pid, since }| format!("({pid}, {since})")).collect()
        };
        if known.is_empty() {
            return Ok(0);
        }
        // Numbers of our own. One message, as a transaction pooler needs it.
        let sql = format!(
            "select count(pg_catalog.pg_terminate_backend(a.pid)) from pg_catalog.pg_stat_activity a \
             join (values {}) s (pid, since) on s.pid = a.pid \
             and s.since = (extract(epoch from a.backend_start) * 1000000)::bigint \
             where a.pid <> pg_backend_pid()",
            known.join(", ")
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(conn).await?;
        sqlx::Row::try_get(&row, 0)
    }
}

//! Detection of a pooler between a client and the server.

use sqlx::{PgConnection, Row};

/// How connections get the server's sessions.
#[derive(Debug)]
pub(crate) enum PoolerKind {
    /// A connection keeps its session: there is no pooler, or one of sessions.
    Nothing,
    /// A connection has a session for a transaction at a time.
    Transactions,
    /// A connection has a session for a statement at a time: no transaction can be had.
    Statements(sqlx::Error),
}

/// The number of tries. One finds an idle pooler; transactions of other clients may come between.
const TRIES: usize = 3;

/// Reads which session it is. A process id alone may be reused, and is another process on another
/// host.
macro_rules! session {
    ($before:literal) => {
        concat!(
            $before,
            "select pid::text || ' ' || backend_start::text from pg_catalog.pg_stat_get_activity(pg_backend_pid())"
        )
    };
}

/// Finds out what hands out the sessions of two connections that are open at once. Never a false
/// alarm: without a pooler, two connections have two sessions and keep them. After an error both
/// are to be closed.
pub(crate) async fn detect_pooler(
    one: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<PoolerKind, sqlx::Error> {
    let own = session(one, session!("")).await?;
    for _ in 0..TRIES {
        // Busy with a transaction, so that `one` cannot have its session for the next one. One
        // message each, which a pooler of transactions gives to one session.
        let others = match session(other, session!("begin; ")).await {
            Err(error) if refuses_transactions(&error) => return Ok(PoolerKind::Statements(error)),
            others => others?,
        };
        if own == others {
            // Rolled back at once: if it is the only session, `one` would wait for it.
            sqlx::raw_sql("rollback").execute(&mut *other).await?;
            return Ok(PoolerKind::Transactions);
        }
        let now = session(one, session!("")).await?;
        sqlx::raw_sql("rollback").execute(&mut *other).await?;
        if own != now {
            return Ok(PoolerKind::Transactions);
        }
    }
    Ok(PoolerKind::Nothing)
}

async fn session(conn: &mut PgConnection, sql: &'static str) -> Result<String, sqlx::Error> {
    let rows = sqlx::raw_sql(sql).fetch_all(conn).await?;
    rows.last().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}

/// As `PgBouncer` says it, in English whatever the server's language is.
fn refuses_transactions(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| e.message().contains("statement pooling mode"))
}

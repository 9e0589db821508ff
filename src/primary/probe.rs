//! Questions to one host: what it is, and which session asks.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tokio::time::timeout;

use crate::primary::choice::Look;
use crate::primary::sessions::{Session, Sessions};
use crate::store::TIMELINE;

/// Bounds each answer. A host that is slower is none that one would lead jobs to.
pub(super) const WITHIN: Duration = Duration::from_secs(1);

/// The name of its session.
const PROBE: &str = "seriatim-follow";

const NO_ANSWER: &str = "it does not answer within 1 s";

/// A host, and the connection that asks it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) options: PgConnectOptions,
    conn: Option<PgConnection>,
}

impl Probe {
    pub(super) fn new(options: PgConnectOptions) -> Self {
        Self { options, conn: None }
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        self.options.clone().application_name(PROBE).connect().await
    }

    /// Asks what the host is, within [`WITHIN`]. Cancel safe: the next call connects anew.
    pub(super) async fn look(&mut self) -> Result<Look, sqlx::Error> {
        let asked = timeout(WITHIN, async {
            // Taken, so that a connection whose answer is outstanding is not asked again.
            let mut conn = match self.conn.take() {
                Some(conn) => conn,
                None => self.connect().await?,
            };
            let (look, _) = look(&mut conn).await?;
            self.conn = Some(conn);
            Ok(look)
        });
        asked.await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Ends the sessions that are of this host, within [`WITHIN`]. Returns how many were; 0 if the
    /// host has not answered.
    pub(super) async fn end_all(&mut self, sessions: &Sessions) -> Result<i64, sqlx::Error> {
        // Taken: a host that is being fenced may not answer any more.
        let Some(mut conn) = self.conn.take() else { return Ok(0) };
        let ended = timeout(WITHIN, sessions.end_all(&mut conn)).await;
        let ended = ended.unwrap_or_else(|_| Err(no_answer()))?;
        self.conn = Some(conn);
        Ok(ended)
    }

    /// The host as people write it.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.options.get_host(), self.options.get_port())
    }
}

fn no_answer() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, NO_ANSWER))
}

const SESSION: &str = "pg_backend_pid(), (select (extract(epoch from a.backend_start) * 1000000)::bigint \
     from pg_catalog.pg_stat_get_activity(pg_backend_pid()) a)";

/// Returns whether the server keeps what it was asked for to itself, for good.
fn is_hidden(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    // No right to call a function, no such function, not supported.
    matches!(code.as_deref(), Some("42501" | "42883" | "0A000"))
}

/// Asks a server what it is, and which session this is. Some hosts keep timelines and identifiers
/// to themselves.
pub(super) async fn look(conn: &mut PgConnection) -> Result<(Look, Option<Session>), sqlx::Error> {
    let whole = format!(
        "select pg_catalog.pg_is_in_recovery(), case when not pg_catalog.pg_is_in_recovery() then {TIMELINE} end, \
         (select s.system_identifier from pg_catalog.pg_control_system() s), {SESSION}"
    );
    let row = match sqlx::raw_sql(AssertSqlSafe(whole)).fetch_one(&mut *conn).await {
        Err(error) if is_hidden(&error) => {
            let plain = format!(
                "select pg_catalog.pg_is_in_recovery(), null::bigint, null::bigint, {SESSION}"
            );
            sqlx::raw_sql(AssertSqlSafe(plain)).fetch_one(conn).await?
        }
        other => other?,
    };
    let look = Look {
        in_recovery: row.try_get(0)?,
        timeline: row.try_get::<Option<i64>, _>(1)?.unwrap_or(0),
        system: row.try_get::<Option<i64>, _>(2)?.unwrap_or(0),
    };
    // A role that a login sets may not see when its session began.
    let (pid, since): (i32, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
    Ok((look, since.map(|since| Session { pid, since })))
}

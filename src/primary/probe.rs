//! Questions to one host: what it is, and which session asks.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tokio::time::timeout;

use crate::primary::choice::Look;
use crate::primary::sessions::Session;
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
        let no_answer = || std::io::Error::new(std::io::ErrorKind::TimedOut, NO_ANSWER);
        asked.await.unwrap_or_else(|_| Err(sqlx::Error::Io(no_answer())))
    }

    /// The connection of the last answer.
    pub(super) fn connection(&mut self) -> Option<&mut PgConnection> {
        self.conn.as_mut()
    }

    /// The host as people write it.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.options.get_host(), self.options.get_port())
    }
}

const SESSION: &str = "pg_backend_pid(), (select (extract(epoch from a.backend_start) * 1000000)::bigint \
     from pg_catalog.pg_stat_get_activity(pg_backend_pid()) a)";

/// Asks a server what it is, and which session this is. Some hosts keep timelines and identifiers
/// to themselves.
pub(super) async fn look(conn: &mut PgConnection) -> Result<(Look, Session), sqlx::Error> {
    let whole = format!(
        "select pg_catalog.pg_is_in_recovery(), case when not pg_catalog.pg_is_in_recovery() then {TIMELINE} end, \
         (select s.system_identifier from pg_catalog.pg_control_system() s), {SESSION}"
    );
    let row = match sqlx::raw_sql(AssertSqlSafe(whole)).fetch_one(&mut *conn).await {
        Err(sqlx::Error::Database(_)) => {
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
    Ok((look, Session { pid: row.try_get(3)?, since: row.try_get(4)? }))
}

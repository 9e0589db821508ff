//! The sessions that hold a process's running jobs: whether they live, and requests to cancel.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::store::hold::SessionId;
use crate::store::literal::array;
use crate::store::session::short;
use crate::store::statement::statements;
use crate::store::store::Store;

/// The sessions that were found alive, by process id and begin, each with the id of its
/// transaction. Without row locks or writes a transaction has none.
pub(crate) type Sessions = HashMap<(i32, DateTime<Utc>), Option<i64>>;

/// The query for sessions, in the form that [`read_sessions`] reads.
fn sessions_sql(pids: &[i32]) -> String {
    let pids = array("int4", pids);
    format!(
        "select pid, (extract(epoch from backend_start) * 1000000)::int8, backend_xid::text::int8 \
         from pg_catalog.pg_stat_activity where pid = any({pids}) and backend_start is not null"
    )
}

fn read_sessions<'a>(rows: impl Iterator<Item = &'a PgRow>) -> Result<Sessions, sqlx::Error> {
    rows.filter_map(|row| {
        let read = || Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        let since = |(pid, since, xid)| Some(((pid, DateTime::from_timestamp_micros(since)?), xid));
        read().map(since).transpose()
    })
    .collect()
}

statements! {
    /// An abort that ends the session comes first, up to its commit.
    TERMINATE = |names| names.sql(
        "with ended as materialized (select pg_advisory_xact_lock_shared({session_end_key}($1)))
        select pg_terminate_backend(s.pid) from ended, pg_catalog.pg_stat_activity s
        where s.pid = $1 and s.backend_start = $2",
    );
}

impl Store {
    /// Returns those of these sessions that live.
    pub(crate) async fn sessions(
        &self,
        conn: &mut PgConnection,
        pids: &[i32],
    ) -> Result<Sessions, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sessions_sql(pids))).fetch_all(conn).await?;
        read_sessions(rows.iter())
    }

    /// Returns which sessions live, and for which jobs there is a request to cancel. One message:
    /// the server may be far, and its answer has to come soon.
    ///
    /// Not cancel safe, and after an error the connection is to be closed.
    pub(crate) async fn check_holds(
        &self,
        conn: &mut PgConnection,
        pids: &[i32],
        jobs: &[i64],
    ) -> Result<(Sessions, Vec<i64>), sqlx::Error> {
        let (begin, requests) = (short(conn), self.cancel_requests_sql(jobs));
        let text = format!("{begin}; {}; {requests}; commit", sessions_sql(pids));
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let (requests, sessions): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.len() == 1);
        let requests = requests.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok((read_sessions(sessions.into_iter())?, requests))
    }

    /// The query for jobs with a request to cancel, in rows of one column.
    pub(crate) fn cancel_requests_sql(&self, jobs: &[i64]) -> String {
        let jobs = array("int8", jobs);
        self.names.sql_with(
            "select distinct job_id from {cancel_request} r where r.job_id = any({jobs})",
            &[("jobs", &jobs)],
        )
    }

    /// Ends a session of this process whose client side was given up, so that its locks do not
    /// outlive it.
    pub(crate) async fn terminate(
        &self,
        conn: &mut PgConnection,
        session: SessionId,
    ) -> Result<(), sqlx::Error> {
        let query = self.query(&TERMINATE).bind(session.pid).bind(session.since);
        query.fetch_optional(conn).await.map(drop)
    }
}

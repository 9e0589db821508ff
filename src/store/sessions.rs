//! The sessions that hold a process's running jobs: whether they live, and requests to cancel.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row};

use crate::store::hold::SessionId;
use crate::store::statement::statements;
use crate::store::store::Store;

/// The sessions that were found alive, by process id and begin, each with the id of its
/// transaction. Without row locks or writes a transaction has none.
pub(crate) type Sessions = HashMap<(i32, DateTime<Utc>), Option<i64>>;

statements! {
    SESSIONS = |names| names.sql(
        "select pid, backend_start, backend_xid::text::int8 from pg_catalog.pg_stat_activity
        where pid = any($1) and backend_start is not null",
    );

    REQUESTS = |names| names.sql(
        "select distinct job_id from {cancel_request} r where r.job_id = any($1)",
    );

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
        pids: Vec<i32>,
    ) -> Result<Sessions, sqlx::Error> {
        let rows = self.query(&SESSIONS).bind(pids).fetch_all(conn).await?;
        rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?))).collect()
    }

    /// Returns those of these jobs that are requested to be cancelled.
    pub(crate) async fn cancel_requests(
        &self,
        conn: &mut PgConnection,
        jobs: Vec<i64>,
    ) -> Result<Vec<i64>, sqlx::Error> {
        let rows = self.query(&REQUESTS).bind(jobs).fetch_all(conn).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
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

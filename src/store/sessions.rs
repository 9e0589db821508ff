//! What a process asks about the sessions that hold its running jobs.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};

use crate::store::Store;
use crate::store::hold::SessionId;
use crate::store::statement::{Names, PG, Template, select, sql};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    sessions: Template,
    requests: Template,
    terminate: Template,
}

/// The sessions that were found alive.
pub(crate) type Sessions = HashSet<SessionId>;

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        let sessions = select()
            .expr(sql("pid"))
            .expr(sql("backend_start"))
            .from(("pg_catalog", "pg_stat_activity"))
            .and_where(sql("pid = any(?1) and backend_start is not null"))
            .to_owned();
        let requests = select()
            .distinct()
            .column("job_id")
            .from_as(names.cancel_request(), "r")
            .and_where(sql("r.job_id = any(?1)"))
            .to_owned();
        let terminate = select()
            .expr(sql("pg_terminate_backend(pid)"))
            .from(("pg_catalog", "pg_stat_activity"))
            .and_where(sql("pid = ?1 and backend_start = ?2"))
            .to_owned();
        Self {
            sessions: Template::new(sessions.build(PG)),
            requests: Template::new(requests.build(PG)),
            terminate: Template::new(terminate.build(PG)),
        }
    }
}

impl Store {
    /// Which of these sessions live.
    pub(crate) async fn sessions(
        &self,
        conn: &mut PgConnection,
        pids: Vec<i32>,
    ) -> Result<Sessions, sqlx::Error> {
        let rows = self.monitor.sessions.query().bind(pids).fetch_all(conn).await?;
        rows.iter()
            .map(|row| Ok(SessionId { pid: row.try_get(0)?, since: row.try_get(1)? }))
            .collect()
    }

    /// For which of these jobs somebody asked to cancel.
    pub(crate) async fn cancel_requests(
        &self,
        conn: &mut PgConnection,
        jobs: Vec<i64>,
    ) -> Result<Vec<i64>, sqlx::Error> {
        let rows = self.monitor.requests.query().bind(jobs).fetch_all(conn).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    /// Ends a session of ours whose client side was given up, so that its locks do not outlive it.
    pub(crate) async fn terminate(
        &self,
        conn: &mut PgConnection,
        session: SessionId,
    ) -> Result<(), sqlx::Error> {
        let query = self.monitor.terminate.query().bind(session.pid).bind(session.since);
        query.fetch_optional(conn).await.map(drop)
    }
}

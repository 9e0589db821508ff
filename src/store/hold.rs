//! Hold: keep a group (or a job without one) while its handler runs.
//!
//! The locks are the truth: they last as long as the transaction and its session do.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::store::claim::Claim;
use crate::store::names::Names;
use crate::store::session::{
    BEGIN, SessionLimits, keep_open_text, no_limit_left, no_transaction_timeout,
    notice_lost_clients, short,
};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// In the transaction that is open, whose limits stay.
    HOLD = |names| names.sql_with("select *, {xid} as xid from {hold_job}($1, $2, false)", &[("xid", XID)]);

    HAS_CLAIM = |names| names.sql("select {has_claim}($1, $2)");

    /// Clears the suspicion of a claim and gives it a fresh lease, if no other transaction has the
    /// row.
    CLEAR_GROUP = |names| names.sql(
        "with ours as materialized (
            select claim from {queue_group} g where g.claim = $1
            for no key update of g skip locked
        )
        update {queue_group} as g set
            suspect = null,
            ready_at = clock_timestamp() + make_interval(secs => $2)
        where g.claim = $1 and (select claim from ours) is not null",
    );
    CLEAR_UNGROUPED = |names| names.sql(
        "with ours as materialized (
            select id from {job} j where j.id = $1 and j.claim = $2
            for no key update of j skip locked
        )
        update {job} as j set
            suspect = null,
            lease_until = clock_timestamp() + make_interval(secs => $3)
        from ours
        where j.id = any (array[ours.id]) and j.claim = $2
        returning j.id",
    );
}

/// The id of the open transaction, as `pg_stat_activity` shows it. Row locks have given it one.
const XID: &str = "pg_current_xact_id_if_assigned()::xid::text::int8";

/// The locks of a claim, which last as long as the transaction and its session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) session: SessionId,
    /// The transaction that has them.
    pub(crate) xid: Option<i64>,
}

/// A session of a server. The process id alone may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId {
    pub(crate) pid: i32,
    pub(crate) since: DateTime<Utc>,
    /// `None`: not known, as behind a transaction pooler.
    pub(crate) server: Option<ServerId>,
}

/// A server that can be written to, and its timeline: a promotion begins another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ServerId {
    pub(crate) system: i64,
    pub(crate) timeline: i64,
}

/// The answer to a try to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HoldAnswer {
    Held(HoldReceipt),
    /// The token is still valid, but another transaction has a row for a moment.
    Skipped,
    /// Another token, or no row: the claim was taken over.
    Lost,
}

/// A job that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldReceipt {
    /// The server's process.
    pub(crate) pid: i32,
    /// Its session, if it was asked for.
    pub(crate) session: Option<SessionId>,
    /// The transaction that holds it.
    pub(crate) xid: Option<i64>,
    /// The claim is suspected. The suspicion must be cleared before the handler runs, in a
    /// transaction of its own: a hold that broke later would be taken over without a grace.
    pub(crate) suspected: bool,
    /// A request to cancel the job is there already.
    pub(crate) cancel_requested: bool,
}

impl HoldAnswer {
    /// Reads the answer of `hold_job`.
    pub(crate) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let Some(pid) = row.try_get("pid")? else {
            return Ok(if row.try_get("lost")? { Self::Lost } else { Self::Skipped });
        };
        Ok(Self::Held(HoldReceipt {
            pid,
            session: None,
            xid: row.try_get("xid")?,
            suspected: row.try_get("suspected")?,
            cancel_requested: row.try_get("cancel_requested")?,
        }))
    }
}

/// The begin of the session, in microseconds: independent of how the session writes times. And its
/// server.
fn session_text(names: &Names) -> String {
    let server = names.quoted("this_server");
    format!(
        "select (extract(epoch from a.backend_start) * 1000000)::bigint, s.system_identifier, s.timeline \
         from pg_catalog.pg_stat_get_activity(pg_backend_pid()) a, {server}() s"
    )
}

/// The begin of a hold's transaction: `begin`, and what it sets.
fn begin_text(conn: &PgConnection, begin: &str) -> String {
    format!("{begin}{}; {}", no_transaction_timeout(conn), no_limit_left())
}

impl Store {
    /// Tries once to hold a claimed job, in the transaction that is open on `conn`.
    pub(crate) async fn hold(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<HoldAnswer, sqlx::Error> {
        let row = self.query(&HOLD).bind(claim.job).bind(claim.token).fetch_one(conn).await?;
        HoldAnswer::read(&row)
    }

    /// Begins a transaction and tries once to hold a claimed job in it, for its handler. Unless it
    /// is held, the transaction is to be rolled back.
    ///
    /// `first` is given for the session's first hold: it has the server
    /// [notice](notice_lost_clients) that the client is gone, and the session's identity is read.
    /// Error 22023 says that the server cannot.
    pub(crate) async fn begin_and_hold(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        first: Option<&SessionLimits>,
    ) -> Result<HoldAnswer, sqlx::Error> {
        let mut text = self.hold_message(conn, BEGIN, claim.job, claim.token);
        if let Some(limits) = first {
            // In a transaction of its own: a job that fails must not undo it.
            let session = session_text(&self.names);
            text = format!("begin; {}; commit; {text}; {session}", notice_lost_clients(limits));
        }
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        match (HoldAnswer::read(row)?, rows.get(1)) {
            (HoldAnswer::Held(receipt), Some(row)) => {
                let since =
                    row.try_get::<Option<i64>, _>(0)?.and_then(DateTime::from_timestamp_micros);
                let server = server_id(row.try_get(1)?, row.try_get(2)?);
                let session = since.map(|since| SessionId { pid: receipt.pid, since, server });
                Ok(HoldAnswer::Held(HoldReceipt { session, ..receipt }))
            }
            (answer, _) => Ok(answer),
        }
    }

    /// Returns the message that begins a transaction, as `begin` says, and holds a job in it.
    pub(crate) fn hold_message(
        &self,
        conn: &PgConnection,
        begin: &str,
        job: i64,
        token: Uuid,
    ) -> String {
        let (begin, hold) = (begin_text(conn, begin), self.names.quoted("hold_job"));
        format!("{begin}select *, {XID} as xid from {hold}({job}, '{token}', true)")
    }

    /// Returns which server the session is on; `None` on a standby.
    pub(crate) async fn server(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Option<ServerId>, sqlx::Error> {
        // One message: a transaction pooler would prepare it in another session.
        let row = sqlx::raw_sql(AssertSqlSafe(self.server_sql())).fetch_one(conn).await?;
        Ok(server_id(row.try_get(0)?, row.try_get(1)?))
    }

    fn server_sql(&self) -> String {
        self.names.sql("select system_identifier, timeline from {this_server}()")
    }

    /// Keeps a new session [open](super::keep_open), and returns which server it is on; `None` on a
    /// standby. One message: the server may be far.
    ///
    /// Not cancel safe, and after an error the connection is to be closed.
    pub(crate) async fn keep_open_on(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Option<ServerId>, sqlx::Error> {
        let (begin, server) = (short(conn), self.server_sql());
        let text = format!("{}; {begin}; {server}; commit", keep_open_text());
        let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(conn).await?;
        Ok(server_id(row.try_get(0)?, row.try_get(1)?))
    }

    /// Returns the session of the connection, without its server.
    pub(crate) async fn session(&self, conn: &mut PgConnection) -> Result<SessionId, sqlx::Error> {
        let sql =
            "select pid, backend_start from pg_catalog.pg_stat_get_activity(pg_backend_pid())";
        // A handler may have deallocated the driver's statements.
        let row = sqlx::raw_sql(sql).fetch_one(conn).await?;
        Ok(SessionId { pid: row.try_get(0)?, since: row.try_get(1)?, server: None })
    }

    /// Returns whether the token is still valid.
    pub(crate) async fn has_claim(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let ours = self.query(&HAS_CLAIM).bind(claim.job).bind(claim.token);
        ours.fetch_one(conn).await?.try_get(0)
    }

    /// Clears the suspicion of a claim, in the short transaction that is open on `conn`.
    pub(crate) async fn clear_suspicion(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        lease: Duration,
    ) -> Result<(), sqlx::Error> {
        let clear_suspicion = match &claim.group {
            Some(_) => self.query(&CLEAR_GROUP).bind(claim.token),
            None => self.query(&CLEAR_UNGROUPED).bind(claim.job).bind(claim.token),
        };
        clear_suspicion.bind(lease.as_secs_f64()).execute(conn).await.map(drop)
    }
}

fn server_id(system: Option<i64>, timeline: Option<i64>) -> Option<ServerId> {
    Some(ServerId { system: system?, timeline: timeline? })
}

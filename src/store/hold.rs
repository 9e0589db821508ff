//! Hold: keep a group (or a job without one) while its handler runs.
//!
//! The locks are the truth: they last as long as the transaction and its session do.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::store::claim::Claim;
use crate::store::fragments::{CLAIMED, claimed_jobs};
use crate::store::loaded_job::{LoadedJob, loaded_columns};
use crate::store::names::Names;
use crate::store::session::{
    BEGIN, SessionLimits, keep_open_text, no_limit_left, no_transaction_timeout, notice, short,
};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Locks the group row by its token, then the job row, both for the transaction. Writes
    /// neither: an adopter that skips locked rows would wait for a row that was written. From here
    /// on the transaction is the handler's, and may wait.
    HOLD_GROUP = |names| names.sql_with(
        "with held as materialized (
            select g.suspect is not null as suspected, g.started_at from {queue_group} g
            where g.claim = $3 and $4 = any ({jobs})
            for no key update of g skip locked
        ), held_job as materialized (
            select j.* from {job} j
            where j.id = $4 and {claimed} and exists (select from held)
            for no key update of j skip locked
        )
        select {columns}, held.suspected, {holder}, {xid} as xid, {followed} as followed,
            set_config('lock_timeout', '0', true), set_config('seriatim.held', $1, true)
        from held
        left join held_job as job on true",
        &[
            ("columns", &loaded_columns(names, "false", "(held.started_at is not null)::integer")),
            ("holder", HOLDER),
            ("xid", XID),
            ("followed", &names.sql(FOLLOWED)),
            ("jobs", &claimed_jobs("g")),
            ("claimed", CLAIMED),
        ],
    );

    /// Locks the job's own row by its token.
    HOLD_UNGROUPED = |names| names.sql_with(
        "with held_job as materialized (
            select j.* from {job} j
            where j.id = $1 and j.claim = $2 and {claimed}
            for no key update of j skip locked
        )
        select {columns}, job.suspect is not null as suspected, {holder}, {xid} as xid, false as followed,
            set_config('lock_timeout', '0', true), set_config('seriatim.held', job.queue, true)
        from held_job as job",
        &[
            ("columns", &loaded_columns(names, "false", "0")),
            ("holder", HOLDER),
            ("xid", XID),
            ("claimed", CLAIMED),
        ],
    );

    /// A plain read: only another token, or no row, says that a claim is lost.
    GROUP_IS_OURS = |names| names.sql("select 1 from {queue_group} g where g.claim = $1");
    UNGROUPED_IS_OURS = |names| names.sql("select 1 from {job} j where j.id = $1 and j.claim = $2");

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

/// The session that holds a job.
const HOLDER: &str = "pg_backend_pid() as pid,
            (select backend_start from pg_catalog.pg_stat_get_activity(pg_backend_pid())) as since";

/// Whether more unfinished jobs are behind `job` in its group.
const FOLLOWED: &str = "exists(
        select 1 from {job} o
        where o.queue = $1 and (o.group_id, o.id) > ($2, job.id) and o.group_id <= $2
            and o.group_id is not null and o.status in ('queued', 'started')
    )";

/// The locks of a claim, which last as long as the transaction and its session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) session: SessionId,
    /// The transaction that has them.
    pub(crate) xid: Option<i64>,
    /// More unfinished jobs were in the group, or nobody looked: a hint that retiring is not worth
    /// trying.
    pub(crate) followed: bool,
}

/// A job that this session holds.
#[derive(Debug)]
pub(crate) struct HeldJob {
    pub(crate) job: LoadedJob,
    pub(crate) hold: Hold,
    /// The claim is suspected. The suspicion must be cleared before the handler runs, in a
    /// transaction of its own: a hold that broke later would be taken over without a grace.
    pub(crate) suspected: bool,
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
#[derive(Debug)]
pub(crate) enum HoldAnswer {
    Held(Box<HeldJob>),
    /// The token still stands, but another transaction has a row for a moment.
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
}

impl HoldReceipt {
    /// Reads the answer to a hold. `None` if it does not stand.
    pub(crate) fn read(row: &PgRow) -> Result<Option<Self>, sqlx::Error> {
        let pid: Option<i32> = row.try_get(0)?;
        let xid = row.try_get(1)?;
        Ok(pid.map(|pid| Self { pid, session: None, xid }))
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
        queue: &str,
        claim: &Claim,
    ) -> Result<HoldAnswer, sqlx::Error> {
        let hold = match &claim.group {
            Some(group) => {
                self.query(&HOLD_GROUP).bind(queue).bind(group).bind(claim.token).bind(claim.job)
            }
            None => self.query(&HOLD_UNGROUPED).bind(claim.job).bind(claim.token),
        };
        match hold.fetch_optional(&mut *conn).await? {
            Some(row) if row.try_get::<Option<i64>, _>("id")?.is_some() => {
                Ok(HoldAnswer::Held(Box::new(HeldJob::read(&row)?)))
            }
            // The group is ours, but the job's row is locked for a moment or no longer started.
            Some(_) => Ok(HoldAnswer::Skipped),
            None if self.is_ours(conn, claim).await? => Ok(HoldAnswer::Skipped),
            None => Ok(HoldAnswer::Lost),
        }
    }

    /// Begins a transaction and holds a claimed job in it, as [`hold`](Self::hold) does. `None` if
    /// a row is locked for a moment, the claim is suspected or lost, or the job is to be cancelled:
    /// the transaction is to be rolled back then.
    ///
    /// `first` is given for the session's first hold: the session is set to
    /// [notice](super::notice_lost_clients) that its client is gone, and its identity is read.
    /// Error 22023 says that the server cannot.
    pub(crate) async fn begin_and_hold(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        first: Option<&SessionLimits>,
    ) -> Result<Option<HoldReceipt>, sqlx::Error> {
        let mut text = self.hold_message(conn, BEGIN, claim.job, claim.token);
        if let Some(limits) = first {
            // In a transaction of its own: a job that fails must not undo it.
            let session = session_text(&self.names);
            text = format!("begin; {}; commit; {text}; {session}", notice(limits));
        }
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let Some(receipt) = HoldReceipt::read(row)? else {
            return Ok(None);
        };
        let Some(row) = rows.get(1) else {
            return Ok(Some(receipt));
        };
        let since = row.try_get::<Option<i64>, _>(0)?.and_then(DateTime::from_timestamp_micros);
        let server = server_id(row.try_get(1)?, row.try_get(2)?);
        let session = since.map(|since| SessionId { pid: receipt.pid, since, server });
        Ok(Some(HoldReceipt { session, ..receipt }))
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
        format!("{begin}select {hold}({job}, '{token}'), {XID}")
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
        let row = sqlx::query(sql).persistent(!self.is_nameless()).fetch_one(conn).await?;
        Ok(SessionId { pid: row.try_get(0)?, since: row.try_get(1)?, server: None })
    }

    /// Returns whether the token still stands.
    pub(crate) async fn is_ours(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let ours = match &claim.group {
            Some(_) => self.query(&GROUP_IS_OURS).bind(claim.token),
            None => self.query(&UNGROUPED_IS_OURS).bind(claim.job).bind(claim.token),
        };
        Ok(ours.fetch_optional(conn).await?.is_some())
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

impl HeldJob {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let session =
            SessionId { pid: row.try_get("pid")?, since: row.try_get("since")?, server: None };
        let hold = Hold { session, xid: row.try_get("xid")?, followed: row.try_get("followed")? };
        Ok(Self { job: LoadedJob::read(row)?, hold, suspected: row.try_get("suspected")? })
    }
}

//! Hold: keep a group (or a job without one) while its handler runs.
//!
//! The locks are the truth: they last as long as the transaction and its session do.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::job::bytes::JobData;
use crate::job::headers::{self, Headers};
use crate::job::waits::WaitsAtClaim;
use crate::store::claim::Claim;
use crate::store::fragments::{CLAIMED, claimed_jobs};
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
        select held.suspected, {columns}, set_config('lock_timeout', '0', true),
            set_config('seriatim.held', $1, true), {xid}
        from held
        left join held_job as job on true",
        &[
            ("columns", &held_columns(names, "false", &names.sql(FOLLOWED), "(held.started_at is not null)::integer")),
            ("xid", XID),
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
        select job.suspect is not null as suspected, {columns},
            set_config('lock_timeout', '0', true), set_config('seriatim.held', job.queue, true), {xid}
        from held_job as job",
        &[("columns", &held_columns(names, "false", "false", "0")), ("xid", XID), ("claimed", CLAIMED)],
    );

    /// Data that the claim has left out.
    JOB_DATA = |names| names.sql("select j.data::text, j.payload, j.content_type from {job} j where j.id = $1");

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

/// Whether more unfinished jobs are behind `job` in its group.
const FOLLOWED: &str = "exists(
        select 1 from {job} o
        where o.queue = $1 and (o.group_id, o.id) > ($2, job.id) and o.group_id <= $2
            and o.group_id is not null and o.status in ('queued', 'started')
    )";

/// The columns that [`held_job`] reads: of a `job`, and of the session that holds it. `running` is
/// the number of attempts that its row does not count yet, and `with_data` whether its data is
/// read.
pub(crate) fn held_columns(
    names: &Names,
    with_data: &str,
    followed: &str,
    running: &str,
) -> String {
    names.sql_with(
        "job.id, case when {with_data} then job.data::text end, job.attempts + {running}, job.attempts_forgiven,
        coalesce(job.max_attempts, (select q.max_attempts from {queue} q where q.name = job.queue)),
        job.timeout_ms, job.created_at, job.run_at,
        exists(select 1 from {cancel_request} r where r.job_id = job.id),
        {followed},
        pg_backend_pid(),
        (select backend_start from pg_catalog.pg_stat_get_activity(pg_backend_pid())),
        job.lease_ms, case when {with_data} then job.payload end, job.content_type, job.name, job.reference, job.priority, job.headers::text,
        job.snoozes",
        &[
            ("followed", followed),
            ("running", running),
            ("with_data", with_data),
        ],
    )
}

/// The part of a claim's bytes above which a job's data is left out of its answer. The job's
/// attempt reads such data: no other job waits for it, and if it cannot be read, that is a failure
/// of this attempt.
pub(crate) const LARGE: u64 = 16;

/// Whether the data of a row has at most so many bytes. It reads no data that is stored apart.
pub(crate) fn is_small(row: &str, bytes: &str) -> String {
    format!("coalesce(octet_length({row}.payload), pg_column_size({row}.data)) <= {bytes}")
}

/// A job that this session holds.
#[derive(Debug)]
pub(crate) struct HeldJob {
    /// `None`: the claim has left it out, and the attempt reads it. A hold reads none.
    pub(crate) data: Option<JobData>,
    pub(crate) content_type: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) priority: u8,
    pub(crate) headers: Headers,
    /// Which attempt this is, from 1.
    pub(crate) attempt: u32,
    /// The number of attempts that do not count against the limit.
    pub(crate) forgiven: u32,
    /// How often it was put off.
    pub(crate) snoozes: u32,
    /// Its own limit, or else that of its queue's settings.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    /// Its own lease, if it has one.
    pub(crate) lease: Option<Duration>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) run_at: DateTime<Utc>,
    /// A request to cancel is there already.
    pub(crate) cancel_requested: bool,
    /// More unfinished jobs were in the group: a hint that retiring is not worth trying.
    pub(crate) followed: bool,
    pub(crate) session: SessionId,
    /// The transaction that holds it; `None` if none does, as under a lease.
    pub(crate) xid: Option<i64>,
    /// The claim is suspected. The suspicion must be cleared before the handler runs, in a
    /// transaction of its own: a hold that broke later would be taken over without a grace.
    pub(crate) suspected: bool,
    /// How long it had waited when it was claimed, and when this process learnt of the claim;
    /// `None` if a hold alone has read the job.
    pub(crate) waits: Option<(WaitsAtClaim, Instant)>,
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
            Some(row) if row.try_get::<Option<i64>, _>(1)?.is_some() => {
                let xid = row.try_get(23)?;
                Ok(HoldAnswer::Held(Box::new(HeldJob { xid, ..held_job(&row)? })))
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

    /// Reads the data of a job that the claim has left out. Locks nothing.
    pub(crate) async fn job_data(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<JobData, sqlx::Error> {
        let row = self.query(&JOB_DATA).bind(job).fetch_one(conn).await?;
        Ok(match row.try_get(1)? {
            Some(bytes) => JobData::Bytes { content_type: row.try_get(2)?, bytes },
            None => JobData::Json(row.try_get(0)?),
        })
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

pub(crate) fn headers(row: &PgRow, column: usize) -> Result<Headers, sqlx::Error> {
    headers::parse(row.try_get(column)?).map_err(|error| sqlx::Error::Decode(error.into()))
}

pub(crate) fn held_job(row: &PgRow) -> Result<HeldJob, sqlx::Error> {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let time = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let content_type: Option<String> = row.try_get(15)?;
    let data = match row.try_get(14)? {
        Some(bytes) => Some(JobData::Bytes { content_type: content_type.clone(), bytes }),
        None => row.try_get::<Option<_>, _>(2)?.map(JobData::Json),
    };
    Ok(HeldJob {
        data,
        content_type,
        name: row.try_get(16)?,
        reference: row.try_get(17)?,
        priority: u8::try_from(row.try_get::<i16, _>(18)?).unwrap_or(0),
        headers: headers(row, 19)?,
        attempt: count(row.try_get(3)?),
        forgiven: count(row.try_get(4)?),
        snoozes: u32::try_from(row.try_get::<i16, _>("snoozes")?).unwrap_or(0),
        max_attempts: row.try_get::<Option<i32>, _>(5)?.map(count),
        timeout: time(row.try_get(6)?),
        lease: time(row.try_get(13)?),
        created_at: row.try_get(7)?,
        run_at: row.try_get(8)?,
        cancel_requested: row.try_get(9)?,
        followed: row.try_get(10)?,
        session: SessionId { pid: row.try_get(11)?, since: row.try_get(12)?, server: None },
        xid: None,
        suspected: row.try_get(0)?,
        waits: None,
    })
}

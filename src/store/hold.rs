//! Hold: keep a group (or a job without one) while its handler runs.
//!
//! The locks are the truth: they last as long as the transaction and its session do.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sea_query::{Expr, JoinType, LockBehavior, LockType, Query, UpdateStatement};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::job::bytes::JobData;
use crate::store::Store;
use crate::store::claim::start::Claim;
use crate::store::index_terms::{in_group, keyed, started, unfinished};
use crate::store::statement::{Names, PG, Template, cte, select, sql, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    group: Template,
    ungrouped: Template,
    group_is_ours: Template,
    ungrouped_is_ours: Template,
    trust_group: Template,
    trust_ungrouped: Template,
}

/// A job that this session holds.
#[derive(Debug)]
pub(crate) struct HeldJob {
    pub(crate) data: JobData,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) priority: u8,
    /// Which attempt this is, from 1.
    pub(crate) attempt: u32,
    /// How many attempts do not count against the limit.
    pub(crate) forgiven: u32,
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
    /// A first look has doubted the claim. Before a handler runs that must be cleared, in a transaction of its own: a
    /// hold that broke later would be taken over without a grace.
    pub(crate) suspected: bool,
}

/// Which session of the server this is; a process id alone may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId {
    pub(crate) pid: i32,
    pub(crate) since: DateTime<Utc>,
}

/// What a try to hold came to.
#[derive(Debug)]
pub(crate) enum HoldAnswer {
    Held(Box<HeldJob>),
    /// The token is still ours, but somebody is looking at a row for a moment.
    Skipped,
    /// Another token, or no row: the claim was taken over.
    Lost,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self {
            group: hold_group(names),
            ungrouped: hold_ungrouped(names),
            group_is_ours: group_is_ours(names),
            ungrouped_is_ours: ungrouped_is_ours(names),
            trust_group: trust_group(names),
            trust_ungrouped: trust_ungrouped(names),
        }
    }
}

/// What is read of a held job, and of the session that holds it.
pub(in crate::store) fn held_columns(names: &Names, followed: Expr) -> Vec<Expr> {
    let requested = select()
        .expr(sql("1"))
        .from_as(names.cancel_request(), "r")
        .and_where(sql("r.job_id = job.id"))
        .to_owned();
    vec![
        sql("job.id"),
        sql("job.data::text"),
        sql("job.attempts"),
        sql("job.attempts_forgiven"),
        sql("job.max_attempts"),
        sql("job.timeout_ms"),
        sql("job.created_at"),
        sql("job.run_at"),
        Expr::exists(requested),
        followed,
        sql("pg_backend_pid()"),
        sql("(select backend_start from pg_catalog.pg_stat_get_activity(pg_backend_pid()))"),
        sql("job.lease_ms"),
        sql("job.payload"),
        sql("job.content_type"),
        sql("job.name"),
        sql("job.reference"),
        sql("job.priority"),
    ]
}

/// From here on the transaction is the handler's, and may wait.
fn may_wait() -> Expr {
    sql("set_config('lock_timeout', '0', true)")
}

/// Locks the group row by its token, then the job row; both for the transaction. Writes neither: an adopter that skips
/// locked rows would wait for a row that was written.
fn hold_group(names: &Names) -> Template {
    let held = select()
        .expr_as(sql("g.suspect is not null"), "doubted")
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = ?3"))
        // Said so, it does not match `queue_group_claimed`, by which all claims would be read.
        .and_where(sql("?4 between coalesce(g.job_id, 0) and coalesce(g.batch_end, g.job_id)"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let job = select()
        .expr(sql("j.*"))
        .from_as(names.job(), "j")
        .and_where(sql(format!("j.id = ?4 and {} and exists (select from held)", started("j."))))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let later = select()
        .expr(sql("1"))
        .from_as(names.job(), "o")
        .and_where(in_group("o", "?1", "?2", Some("> job.id")))
        .and_where(unfinished("o"))
        .to_owned();
    let query = select()
        .expr_as(sql("held.doubted"), "doubted")
        .exprs(held_columns(names, Expr::exists(later)))
        .expr(may_wait())
        .from("held")
        .join(JoinType::LeftJoin, "job", sql("true"))
        .to_owned();
    with([cte("held", held), cte("job", job)], query)
}

/// Locks the job's own row by its token.
fn hold_ungrouped(names: &Names) -> Template {
    let job = select()
        .expr(sql("j.*"))
        .from_as(names.job(), "j")
        .and_where(sql(format!("j.id = ?1 and j.claim = ?2 and {}", started("j."))))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let query = select()
        .expr_as(sql("job.suspect is not null"), "doubted")
        .exprs(held_columns(names, sql("false")))
        .expr(may_wait())
        .from("job")
        .to_owned();
    with([cte("job", job)], query)
}

/// A plain read: only another token, or no row, says that a claim is lost.
fn group_is_ours(names: &Names) -> Template {
    let query = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = ?1"))
        .to_owned();
    Template::new(query.build(PG))
}

fn ungrouped_is_ours(names: &Names) -> Template {
    let query = select()
        .expr(sql("1"))
        .from_as(names.job(), "j")
        .and_where(sql("j.id = ?1 and j.claim = ?2"))
        .to_owned();
    Template::new(query.build(PG))
}

/// Clears the doubt about a claim and gives it a fresh lease, if nobody else is at the row.
fn trust_group(names: &Names) -> Template {
    let ours = select()
        .column("claim")
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = ?1"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let query = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .value("suspect", sql("null"))
        .value("ready_at", sql("clock_timestamp() + make_interval(secs => ?2)"))
        .and_where(sql("g.claim = ?1 and (select claim from ours) is not null"))
        .to_owned();
    with([cte("ours", ours)], query)
}

fn trust_ungrouped(names: &Names) -> Template {
    let ours = select()
        .column("id")
        .from_as(names.job(), "j")
        .and_where(sql("j.id = ?1 and j.claim = ?2"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let query = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("suspect", sql("null"))
        .value("lease_until", sql("clock_timestamp() + make_interval(secs => ?3)"))
        .from("ours")
        .and_where(sql(format!("{} and j.claim = ?2", keyed("j.id", "ours.id"))))
        .returning(Query::returning().columns([("j", "id")]))
        .to_owned();
    with([cte("ours", ours)], query)
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
                self.hold.group.query().bind(queue).bind(group).bind(claim.token).bind(claim.job)
            }
            None => self.hold.ungrouped.query().bind(claim.job).bind(claim.token),
        };
        match hold.fetch_optional(&mut *conn).await? {
            Some(row) if row.try_get::<Option<i64>, _>(1)?.is_some() => {
                Ok(HoldAnswer::Held(Box::new(held_job(&row)?)))
            }
            // The group is ours and the job's row is not to be had: locked for a moment, or no longer started.
            Some(_) => Ok(HoldAnswer::Skipped),
            None if self.is_ours(conn, claim).await? => Ok(HoldAnswer::Skipped),
            None => Ok(HoldAnswer::Lost),
        }
    }

    /// Whether the token is still that of its claim.
    pub(in crate::store) async fn is_ours(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let ours = match &claim.group {
            Some(_) => self.hold.group_is_ours.query().bind(claim.token),
            None => self.hold.ungrouped_is_ours.query().bind(claim.job).bind(claim.token),
        };
        Ok(ours.fetch_optional(conn).await?.is_some())
    }

    /// Clears a first look's doubt, in the short transaction that is open on `conn`.
    pub(crate) async fn clear_suspicion(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        lease: Duration,
    ) -> Result<(), sqlx::Error> {
        let clear_suspicion = match &claim.group {
            Some(_) => self.hold.trust_group.query().bind(claim.token),
            None => self.hold.trust_ungrouped.query().bind(claim.job).bind(claim.token),
        };
        clear_suspicion.bind(lease.as_secs_f64()).execute(conn).await.map(drop)
    }
}

pub(in crate::store) fn held_job(row: &PgRow) -> Result<HeldJob, sqlx::Error> {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let time = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let data = match row.try_get(14)? {
        Some(bytes) => JobData::Bytes { content_type: row.try_get(15)?, bytes },
        None => JobData::Json(row.try_get(2)?),
    };
    Ok(HeldJob {
        data,
        name: row.try_get(16)?,
        reference: row.try_get(17)?,
        priority: u8::try_from(row.try_get::<i16, _>(18)?).unwrap_or(0),
        attempt: count(row.try_get(3)?),
        forgiven: count(row.try_get(4)?),
        max_attempts: row.try_get::<Option<i32>, _>(5)?.map(count),
        timeout: time(row.try_get(6)?),
        lease: time(row.try_get(13)?),
        created_at: row.try_get(7)?,
        run_at: row.try_get(8)?,
        cancel_requested: row.try_get(9)?,
        followed: row.try_get(10)?,
        session: SessionId { pid: row.try_get(11)?, since: row.try_get(12)? },
        suspected: row.try_get(0)?,
    })
}

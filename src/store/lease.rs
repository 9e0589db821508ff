//! Leases: what keeps a claimed job where no transaction does. Extended for many jobs in one statement, by token (P10).

use std::collections::HashSet;

use sea_query::{Expr, JoinType, LockBehavior, LockType, Query, UpdateStatement};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::store::Store;
use crate::store::hold::{HeldJob, held_columns, held_job};
use crate::store::index_terms::keyed;
use crate::store::statement::{Names, Template, cte, rows_of, select, sql, sub, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    extend_groups: Template,
    extend_ungrouped: Template,
    still_claimed: Template,
    claimed: Template,
}

/// A claim that its lease keeps.
#[derive(Debug, Clone)]
pub(crate) struct LeasedClaim {
    pub(crate) job: i64,
    /// Whether it is of no group.
    pub(crate) ungrouped: bool,
    /// Jobs that will run after it under the same claim.
    pub(crate) behind: Vec<i64>,
    pub(crate) token: Uuid,
    /// In seconds.
    pub(crate) lease: f64,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self {
            extend_groups: extend_groups(names),
            extend_ungrouped: extend_ungrouped(names),
            still_claimed: still_claimed(names),
            claimed: claimed(names),
        }
    }
}

/// Gives groups their lease again and clears a doubt; rows that somebody has are skipped, and tried again.
fn extend_groups(names: &Names) -> Template {
    let row = select()
        .column(("g", "ctid"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = lease.claim"))
        .limit(1)
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let ours = select()
        .columns([("g", "ctid"), ("lease", "seconds")])
        .from("lease")
        .join_lateral(JoinType::InnerJoin, row, "g", sql("true"))
        .to_owned();
    let extended = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .value("suspect", sql("null"))
        .value("ready_at", sql("clock_timestamp() + make_interval(secs => ours.seconds)"))
        .from("ours")
        // A version that is newer than this statement is not found: it is tried again.
        .and_where(sql("g.ctid = ours.ctid"))
        .returning(Query::returning().expr(sql("g.claim")))
        .to_owned();
    let lease = rows_of(&[(1, "claim"), (2, "seconds")]);
    with([cte("lease", lease), cte("ours", ours)], extended)
}

/// The same for jobs without a group.
fn extend_ungrouped(names: &Names) -> Template {
    let row = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(sql("j.id = lease.id and j.claim = lease.claim"))
        .limit(1)
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let ours = select()
        .columns([("j", "id"), ("lease", "claim"), ("lease", "seconds")])
        .from("lease")
        .join_lateral(JoinType::InnerJoin, row, "j", sql("true"))
        .to_owned();
    let extended = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("suspect", sql("null"))
        .value("lease_until", sql("clock_timestamp() + make_interval(secs => ours.seconds)"))
        .from("ours")
        .and_where(sql(format!("{} and j.claim = ours.claim", keyed("j.id", "ours.id"))))
        .returning(Query::returning().expr(sql("j.claim")))
        .to_owned();
    let lease = rows_of(&[(1, "id"), (2, "claim"), (3, "seconds")]);
    with([cte("lease", lease), cte("ours", ours)], extended)
}

/// A plain read: only another token, or no row, says that a claim is lost.
fn still_claimed(names: &Names) -> Template {
    let of_group = select()
        .expr(sql("g.claim"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = lease.claim"))
        .limit(1)
        .to_owned();
    let of_job = select()
        .expr(sql("j.claim"))
        .from_as(names.job(), "j")
        .and_where(sql("j.id = lease.id and lease.loose"))
        .limit(1)
        .to_owned();
    let query = select()
        .column("claim")
        .from("lease")
        .and_where(Expr::cust_with_exprs(
            "lease.claim = coalesce($1, $2)",
            [sub(of_group), sub(of_job)],
        ))
        .to_owned();
    let lease = rows_of(&[(1, "claim"), (2, "id"), (3, "loose")]);
    with([cte("lease", lease)], query)
}

/// What a handler needs of jobs that this transaction has just claimed.
fn claimed(names: &Names) -> Template {
    let query = select()
        .expr_as(sql("false"), "doubted")
        .exprs(held_columns(names, sql("true")))
        .from_as(names.job(), "job")
        .and_where(sql("job.id = any(?1)"))
        .to_owned();
    Template::new(query.build(super::statement::PG))
}

impl Store {
    /// Reads the jobs that this transaction has claimed.
    pub(crate) async fn claimed_jobs(
        &self,
        conn: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<Vec<(i64, HeldJob)>, sqlx::Error> {
        let rows = self.lease.claimed.query().bind(jobs).fetch_all(conn).await?;
        rows.iter().map(|row| Ok((row.try_get(1)?, held_job(row)?))).collect()
    }

    /// Extends leases; the tokens of those that were.
    pub(crate) async fn extend_leases(
        &self,
        conn: &mut PgConnection,
        claims: &[LeasedClaim],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let (ungrouped, grouped): (Vec<_>, Vec<_>) = claims.iter().partition(|c| c.ungrouped);
        let mut extended = HashSet::with_capacity(claims.len());
        if !grouped.is_empty() {
            let tokens: Vec<Uuid> = grouped.iter().map(|c| c.token).collect();
            let seconds: Vec<f64> = grouped.iter().map(|c| c.lease).collect();
            let extend = self.lease.extend_groups.query().bind(tokens).bind(seconds);
            for row in extend.fetch_all(&mut *conn).await? {
                extended.insert(row.try_get(0)?);
            }
        }
        if !ungrouped.is_empty() {
            let jobs: Vec<i64> = ungrouped.iter().map(|c| c.job).collect();
            let tokens: Vec<Uuid> = ungrouped.iter().map(|c| c.token).collect();
            let seconds: Vec<f64> = ungrouped.iter().map(|c| c.lease).collect();
            let extend = self.lease.extend_ungrouped.query().bind(jobs).bind(tokens).bind(seconds);
            for row in extend.fetch_all(&mut *conn).await? {
                extended.insert(row.try_get(0)?);
            }
        }
        Ok(extended)
    }

    /// Which of these claims still stand.
    pub(crate) async fn still_claimed(
        &self,
        conn: &mut PgConnection,
        claims: &[LeasedClaim],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let tokens: Vec<Uuid> = claims.iter().map(|c| c.token).collect();
        let jobs: Vec<i64> = claims.iter().map(|c| c.job).collect();
        let ungrouped: Vec<bool> = claims.iter().map(|c| c.ungrouped).collect();
        let still_claimed =
            self.lease.still_claimed.query().bind(tokens).bind(jobs).bind(ungrouped);
        let rows = still_claimed.fetch_all(conn).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}

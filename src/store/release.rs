//! Unclaim: give claimed jobs back that were not begun, as if they had not been claimed.

use std::collections::HashSet;

use sea_query::{Expr, JoinType, LockType, Order, UpdateStatement};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::job::group_plan::Disposition;
use crate::store::Store;
use crate::store::claim::start::Claim;
use crate::store::index_terms::{keyed, started};
use crate::store::settle::many as settle_many;
use crate::store::settle::one::freed;
use crate::store::statement::{Names, Template, cte, rows_of, select, sql, sub, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    lock_groups: Template,
    lock_ungrouped: Template,
    jobs: Template,
    groups: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self {
            lock_groups: settle_many::lock_groups(names, LockType::NoKeyUpdate),
            lock_ungrouped: lock_ungrouped(names),
            jobs: jobs(names),
            groups: groups(names),
        }
    }
}

/// Locks the jobs without a group that are still these claims'.
fn lock_ungrouped(names: &Names) -> Template {
    let row = settle_many::lock_ungrouped(names);
    let query = select()
        .column(("claimed", "claim"))
        .from("claimed")
        .join_lateral(JoinType::InnerJoin, row, "j", sql("true"))
        .to_owned();
    with([cte("claimed", rows_of(&[(1, "job_id"), (2, "claim")]))], query)
}

/// The jobs of claims that this transaction has locked. Where a claim has begun no attempt, none was counted.
fn jobs(names: &Names) -> Template {
    let query = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("status", sql("'queued'"))
        .value("attempts", sql("j.attempts - given.begun::integer"))
        .value(
            "last_started_at",
            sql("case when j.attempts > 1 or not given.begun then j.last_started_at end"),
        )
        .values(
            ["claim", "lease_until", "suspect", "claimed_by"].map(|column| (column, sql("null"))),
        )
        .from("given")
        .and_where(sql(format!("{} and {}", keyed("j.id", "given.id"), started("j."))))
        .to_owned();
    with([cte("given", rows_of(&[(1, "id"), (2, "begun")]))], query)
}

/// Their groups, which go to the front of the line: there they were.
fn groups(names: &Names) -> Template {
    let mut first = select()
        .column(("f", "ready_at"))
        .from_as(names.queue_group(), "f")
        .and_where(sql("f.queue = ?1 and f.ready_at <= now() and f.ready_at < 'infinity'"))
        .limit(1)
        .to_owned();
    first.order_by(("f", "ready_at"), Order::Asc);
    let first = sub(first);
    let query = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .values(freed())
        .value(
            "ready_at",
            Expr::cust_with_expr("least($1, clock_timestamp()) - interval '1 us'", first),
        )
        .from("ours")
        .and_where(sql("g.ctid = ours.ctid"))
        .to_owned();
    let row = select()
        .column(("g", "ctid"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = given.claim"))
        .limit(1)
        .to_owned();
    let ours = select()
        .column(("g", "ctid"))
        .from("given")
        .join_lateral(JoinType::InnerJoin, row, "g", sql("true"))
        .to_owned();
    with([cte("given", rows_of(&[(2, "claim")])), cte("ours", ours)], query)
}

impl Store {
    /// Gives claims of a queue back, of jobs whose handlers have not begun, and wakes others for them. The tokens of
    /// those that are no claims any more: of the others somebody has a row for a moment. In the short transaction that is
    /// open on `conn`.
    pub(crate) async fn release(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        claims: &[&Claim],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let grouped = claims.iter().filter(|of| of.group.is_some());
        let tokens: Vec<Uuid> = grouped.map(|of| of.token).collect();
        let lock = self.release.lock_groups.query().bind(tokens);
        let mut rows = lock.fetch_all(&mut *conn).await?;
        let ungrouped = claims.iter().filter(|of| of.group.is_none());
        let (jobs, tokens): (Vec<i64>, Vec<Uuid>) = ungrouped.map(|of| (of.job, of.token)).unzip();
        if !jobs.is_empty() {
            let lock = self.release.lock_ungrouped.query().bind(jobs).bind(tokens);
            rows.extend(lock.fetch_all(&mut *conn).await?);
        }
        let locked: HashSet<Uuid> =
            rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let given = || claims.iter().filter(|of| locked.contains(&of.token));
        let heads = given().map(|of| (of.job, of.go == Disposition::Run));
        let behind = given().flat_map(|of| of.behind.iter().map(|job| (*job, true)));
        let (jobs, begun): (Vec<i64>, Vec<bool>) = heads.chain(behind).unzip();
        if !jobs.is_empty() {
            self.release.jobs.query().bind(jobs).bind(begun).execute(&mut *conn).await?;
            let grouped = given().filter(|of| of.group.is_some());
            let tokens: Vec<Uuid> = grouped.map(|of| of.token).collect();
            let free = self.release.groups.query().bind(queue).bind(tokens);
            free.execute(&mut *conn).await?;
            self.wake_others(conn, queue).await?;
        }
        let mut over = locked.clone();
        for claim in claims.iter().filter(|of| !locked.contains(&of.token)) {
            // Skipped, or taken over; or an earlier try was committed, and its answer was lost.
            if !self.is_ours(conn, claim).await? {
                over.insert(claim.token);
            }
        }
        Ok(over)
    }
}

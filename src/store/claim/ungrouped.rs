//! Jobs without a group: their own row is their lock, their token and their lease.

use sea_query::{LockBehavior, LockType, Order, Query, SelectStatement, UpdateStatement};
use sqlx::{PgConnection, Row};

use crate::job::group_plan::Disposition;
use crate::store::Store;
use crate::store::claim::start::{Claim, ClaimOptions, go, lease, lost_attempt};
use crate::store::index_terms::keyed;
use crate::store::statement::{Names, Template, cte, limit, select, sql, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    start: Template,
    take_over: Template,
    suspect: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        let lapsed = "j.status = 'started' and j.lease_until <= now()";
        let suspected = names.is_doubted("j", "lease_until");
        Self {
            start: start(names, "j.status = 'queued' and j.turn_at <= now()", &["turn_at", "id"]),
            take_over: start(names, &format!("{lapsed} and {suspected}"), &["lease_until"]),
            suspect: suspect(names, &format!("{lapsed} and not {suspected}")),
        }
    }
}

/// Locks up to n rows, oldest first. Each row decides for itself, and its condition is checked again on the version
/// that was locked, so one statement may lock and write.
fn lock(names: &Names, condition: &str, order: &[&'static str]) -> SelectStatement {
    let mut rows = select();
    rows.columns(["id"])
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.group_id is null"))
        .and_where(sql(condition.to_owned()))
        .limit(limit(2))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked);
    for column in order {
        rows.order_by(*column, Order::Asc);
    }
    rows
}

/// Starts due jobs, or those whose claim was doubted a grace ago. Counts the attempt if there is one (P9).
fn start(names: &Names, condition: &str, order: &[&'static str]) -> Template {
    let mut due = lock(names, condition, order);
    due.expr_as(sql(go("j", "?4", "?7")), "go");
    let started = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("status", sql("'started'")),
            ("history", lost_attempt("j", "due.go")),
            ("attempts", sql("j.attempts + case when due.go = 'run' then 1 else 0 end")),
            (
                "last_started_at",
                sql("case when due.go = 'run' then clock_timestamp() else j.last_started_at end"),
            ),
            ("claim", sql("gen_random_uuid()")),
            ("suspect", sql("null")),
            ("claimed_by", sql("?6")),
            ("lease_until", sql(format!("clock_timestamp() + {}", lease("j", "?3", "?5")))),
        ])
        .from("due")
        .and_where(sql(keyed("j.id", "due.id")))
        .returning(Query::returning().exprs([
            sql("j.id"),
            sql("j.claim"),
            sql("due.go"),
            sql("j.expires_at"),
        ]))
        .to_owned();
    with([cte("due", due)], started)
}

/// The first look at a lapsed lease: doubts it, and has it looked at again a grace later.
fn suspect(names: &Names, condition: &str) -> Template {
    let suspected = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("suspect", sql("j.claim"))
        .value("lease_until", sql(names.doubt_until("j")))
        .from("due")
        .and_where(sql(keyed("j.id", "due.id")))
        .to_owned();
    with([cte("due", lock(names, condition, &["lease_until"]))], suspected)
}

impl Store {
    /// Claims up to `n` due jobs without a group, oldest first.
    pub(crate) async fn start_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        self.claim_ungrouped(conn, &self.ungrouped.start, queue, n, options).await
    }

    /// Doubts lapsed claims of jobs without a group, and takes over those doubted a grace ago.
    pub(crate) async fn take_over_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let suspect = self.ungrouped.suspect.query().bind(queue).bind(i64::MAX);
        suspect.execute(&mut *conn).await?;
        self.claim_ungrouped(conn, &self.ungrouped.take_over, queue, n, options).await
    }

    async fn claim_ungrouped(
        &self,
        conn: &mut PgConnection,
        template: &Template,
        queue: &str,
        n: i64,
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        if n < 1 {
            return Ok(Vec::new());
        }
        let claim = template.query().bind(queue).bind(n).bind(options.lease.as_secs_f64());
        let claim =
            claim.bind(options.max_attempts).bind(options.own_lease).bind(options.processor);
        let claim = claim.bind(options.ignore_before);
        let rows = claim.fetch_all(conn).await?;
        rows.iter()
            .map(|row| {
                Ok(Claim {
                    behind: Vec::new(),
                    job: row.try_get(0)?,
                    group: None,
                    token: row.try_get(1)?,
                    go: Disposition::parse(row.try_get(2)?, row.try_get(3)?),
                    may_wait: None,
                })
            })
            .collect()
    }
}

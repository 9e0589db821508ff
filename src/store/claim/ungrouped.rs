//! Jobs without a group: their own row is their lock, their token and their lease.

use sea_query::{LockBehavior, LockType, Order, Query, SelectStatement, UpdateStatement};
use sqlx::{PgConnection, Row};

use crate::job::group_plan::Go;
use crate::store::Store;
use crate::store::claim::start::{Started, Terms, go, lease, lost_attempt};
use crate::store::index_terms::keyed;
use crate::store::statement::{Names, Template, cte, limit, select, sql, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    start: Template,
    take_over: Template,
    doubt: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        let lapsed = "j.status = 'started' and j.lease_until <= now()";
        let doubted = names.is_doubted("j", "lease_until");
        Self {
            start: start(names, "j.status = 'queued' and j.turn_at <= now()", &["turn_at", "id"]),
            take_over: start(names, &format!("{lapsed} and {doubted}"), &["lease_until"]),
            doubt: doubt(names, &format!("{lapsed} and not {doubted}")),
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
fn doubt(names: &Names, condition: &str) -> Template {
    let doubted = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("suspect", sql("j.claim"))
        .value("lease_until", sql(names.doubt_until("j")))
        .from("due")
        .and_where(sql(keyed("j.id", "due.id")))
        .to_owned();
    with([cte("due", lock(names, condition, &["lease_until"]))], doubted)
}

impl Store {
    /// Claims up to `n` due jobs without a group, oldest first.
    pub(crate) async fn start_loose(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
        terms: Terms,
    ) -> Result<Vec<Started>, sqlx::Error> {
        self.claim_loose(conn, &self.loose.start, queue, n, terms).await
    }

    /// Doubts lapsed claims of jobs without a group, and takes over those doubted a grace ago.
    pub(crate) async fn take_over_loose(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
        terms: Terms,
    ) -> Result<Vec<Started>, sqlx::Error> {
        let doubt = self.loose.doubt.query().bind(queue).bind(i64::MAX);
        doubt.execute(&mut *conn).await?;
        self.claim_loose(conn, &self.loose.take_over, queue, n, terms).await
    }

    async fn claim_loose(
        &self,
        conn: &mut PgConnection,
        template: &Template,
        queue: &str,
        n: i64,
        terms: Terms,
    ) -> Result<Vec<Started>, sqlx::Error> {
        if n < 1 {
            return Ok(Vec::new());
        }
        let claim = template.query().bind(queue).bind(n).bind(terms.lease.as_secs_f64());
        let claim = claim.bind(terms.max_attempts).bind(terms.own_lease).bind(terms.processor);
        let claim = claim.bind(terms.ignore_before);
        let rows = claim.fetch_all(conn).await?;
        rows.iter()
            .map(|row| {
                Ok(Started {
                    behind: Vec::new(),
                    job: row.try_get(0)?,
                    group: None,
                    token: row.try_get(1)?,
                    go: Go::parse(row.try_get(2)?, row.try_get(3)?),
                    may_wait: None,
                })
            })
            .collect()
    }
}

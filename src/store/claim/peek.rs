//! Peek: an unlocked read of a queue, which says what a claim has to do.

use std::time::Duration;

use sea_query::{Expr, Order};
use sqlx::{PgConnection, Row};

use crate::store::builder::{PG, render, select, sql, sub};
use crate::store::claim::adopt::FLAG_DUE_AT;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    PEEK = peek;
}

/// What a claim has to do.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools)] // What the probes answered.
pub(crate) struct Peek {
    /// Flags are due, and this transaction is the queue's adopter.
    pub(crate) adopter: bool,
    /// Flags are due, and another worker is adopting them.
    pub(crate) others_adopt: bool,
    /// A group is due.
    pub(crate) groups: bool,
    /// A job without a group is due.
    pub(crate) ungrouped: bool,
    /// The lease of a job without a group ran out.
    pub(crate) lapsed: bool,
    /// A group slept until its time, and is to get its priority's aging.
    pub(crate) aging: bool,
    /// So is a job without a group.
    pub(crate) ungrouped_aging: bool,
    /// Nothing is claimed.
    pub(crate) paused: bool,
    /// The queue has a limit of jobs in flight.
    pub(crate) limited: bool,
    /// How long it is until the next job or group is due.
    pub(crate) next: Option<Duration>,
}

fn peek(names: &Names) -> String {
    // Each in its index's order, so that no plan reads another index, or a backlog, to find one
    // row.
    let first = |condition: &'static str, order: &'static str| {
        select()
            .column(("j", order))
            .from_as(names.job(), "j")
            .and_where(sql(condition))
            .order_by(("j", order), Order::Asc)
            .limit(1)
            .to_owned()
    };
    let flag = |condition: &str| {
        select()
            .expr(sql(FLAG_DUE_AT))
            .from_as(names.job(), "j")
            .and_where(sql(format!("j.queue = ?1 and j.flagged and {FLAG_DUE_AT} {condition}")))
            .order_by_expr(sql(FLAG_DUE_AT), Order::Asc)
            .limit(1)
            .to_owned()
    };
    let flagged = flag("<= now()");
    let next_flag = flag("> now()");
    let ungrouped = first(
        "j.queue = ?1 and j.group_id is null and j.status = 'queued' and j.turn_at <= now()",
        "turn_at",
    );
    let lapsed = first(
        "j.queue = ?1 and j.group_id is null and j.status = 'started' and j.lease_until <= now()",
        "lease_until",
    );
    let next_ungrouped = first(
        "j.queue = ?1 and j.group_id is null and j.status = 'queued' and j.turn_at > now()",
        "turn_at",
    );
    let first_group = |condition: &'static str| {
        select()
            .column(("g", "ready_at"))
            .from_as(names.queue_group(), "g")
            .and_where(sql(condition))
            .order_by(("g", "ready_at"), Order::Asc)
            .limit(1)
            .to_owned()
    };
    let due = first_group("g.queue = ?1 and g.ready_at <= now() and g.ready_at < 'infinity'");
    let next_group = first_group("g.queue = ?1 and g.ready_at > now() and g.ready_at < 'infinity'");
    let aging = first_group("g.queue = ?1 and g.aging_priority > 0 and g.ready_at <= now()");
    let ungrouped_aging = first(
        "j.queue = ?1 and j.group_id is null and j.status = 'queued' and j.priority > 0 \
         and j.turn_at >= j.run_at and j.run_at <= now()",
        "run_at",
    );
    let setting = |column: &'static str| {
        select()
            .column(("q", column))
            .from_as(names.queue(), "q")
            .and_where(sql("q.name = ?1"))
            .to_owned()
    };
    let seconds = Expr::cust_with_exprs(
        "extract(epoch from nullif(least($1, $2, $3), 'infinity') - clock_timestamp())::float8",
        [sub(next_group), sub(next_ungrouped), sub(next_flag)],
    );
    let is_some = |query| Expr::cust_with_expr("$1 is not null", sub(query));
    let query = select()
        .expr_as(
            Expr::cust_with_expr(
                "case when $1 then pg_try_advisory_xact_lock(hashtextextended(?2, 0)) end",
                is_some(flagged),
            ),
            "adopter",
        )
        .expr_as(is_some(due), "groups")
        .expr_as(is_some(ungrouped), "ungrouped")
        .expr_as(is_some(lapsed), "lapsed")
        .expr_as(is_some(aging), "aging")
        .expr_as(is_some(ungrouped_aging), "ungrouped_aging")
        .expr_as(is_some(setting("paused_at")), "paused")
        .expr_as(is_some(setting("in_flight_limit")), "limited")
        .expr_as(seconds, "next")
        .to_owned();
    render(query.build(PG))
}

/// Returns the time until then.
pub(in crate::store) fn until(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|s| Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX))
}

impl Store {
    /// The first statement of a claim; takes the adopter's lock if flags are due and it is free.
    pub(crate) async fn peek(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Peek, sqlx::Error> {
        let lock = format!("seriatim adopt {} {queue}", self.names.schema());
        let row = self.query(&PEEK).bind(queue).bind(lock).fetch_one(conn).await?;
        let adopter: Option<bool> = row.try_get("adopter")?;
        let next: Option<f64> = row.try_get("next")?;
        Ok(Peek {
            adopter: adopter == Some(true),
            others_adopt: adopter == Some(false),
            groups: row.try_get("groups")?,
            ungrouped: row.try_get("ungrouped")?,
            lapsed: row.try_get("lapsed")?,
            aging: row.try_get("aging")?,
            ungrouped_aging: row.try_get("ungrouped_aging")?,
            paused: row.try_get("paused")?,
            limited: row.try_get("limited")?,
            next: until(next),
        })
    }
}

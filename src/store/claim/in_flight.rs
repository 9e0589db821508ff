//! In flight: the limit of a queue's jobs that are claimed at once, over the whole fleet.
//!
//! Whoever may add to them has the queue's row locked, and counts in a new statement. What others settle meanwhile only
//! makes it less. So the limit holds exactly, and after crashes too: a claim counts until its job is settled, and a
//! take-over, which does not add to the count, is allowed beyond it (or a fleet that crashed would never go on).

use sea_query::{Expr, JoinType, LockBehavior, LockType, Order, SelectStatement};
use sqlx::{PgConnection, Row};

use crate::job::group_plan::LockedGroup;
use crate::store::Store;
use crate::store::claim::start::taken;
use crate::store::index_terms::same_group;
use crate::store::statement::{Names, PG, Template, cte, limit, select, sql, sub, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    lock: Template,
    count: Template,
    take_lapsed: Template,
}

/// How many more jobs of a queue may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// So many; none: any number.
    For(Option<usize>),
    /// It was paused meanwhile.
    Paused,
    /// Another claim is counting, or somebody is changing the queue's settings.
    Busy,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self { lock: lock(names), count: count(names), take_lapsed: take_lapsed(names) }
    }
}

/// The limit, under the lock that every claim of such a queue takes.
fn lock(names: &Names) -> Template {
    let query = select()
        .expr(sql("q.in_flight_limit"))
        .expr(sql("q.paused_at is not null"))
        .from_as(names.queue(), "q")
        .and_where(sql("q.name = ?1"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["q"], LockBehavior::SkipLocked)
        .to_owned();
    Template::new(query.build(PG))
}

/// The claimed groups of a queue. In the order of the one index that has only such rows: no plan reads a backlog then.
fn claimed(names: &Names) -> SelectStatement {
    select()
        .columns([("g", "queue"), ("g", "group_id"), ("g", "ready_at"), ("g", "batch_size")])
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.job_id is not null"))
        .order_by(("g", "claimed_by"), Order::Asc)
        .to_owned()
}

/// Locks the rows of up to n groups whose claim's lease ran out, the longest lapsed first. Those that are only held for
/// longer than that are skipped.
fn take_lapsed(names: &Names) -> Template {
    let lapsed = claimed(names).and_where(sql("g.ready_at <= now()")).to_owned();
    let query = select()
        .columns([("g", "group_id"), ("g", "job_id"), ("g", "head_id"), ("g", "batch_end")])
        .expr_as(sql(names.is_doubted("g", "ready_at")), "doubted")
        .from("lapsed")
        .join_as(JoinType::InnerJoin, names.queue_group(), "g", sql(same_group("g", "lapsed")))
        // Not `is not null`: the index of all claimed groups would do as well then, once for each that lapsed.
        .and_where(sql("coalesce(g.job_id, 0) > 0 and g.ready_at <= now()"))
        .order_by(("lapsed", "ready_at"), Order::Asc)
        .limit(limit(2))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    with([cte("lapsed", lapsed)], query)
}

/// The jobs that are claimed. Their leases do not matter.
fn count(names: &Names) -> Template {
    let groups = select()
        .expr(sql("coalesce(sum(claimed.batch_size), 0)"))
        .from_subquery(claimed(names), "claimed")
        .to_owned();
    let ungrouped = select()
        .expr(sql("count(*)"))
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.group_id is null and j.status = 'started'"))
        .to_owned();
    let query =
        select().expr(Expr::cust_with_exprs("$1 + $2", [sub(groups), sub(ungrouped)])).to_owned();
    Template::new(query.build(PG))
}

impl Store {
    /// Takes the turns of groups whose claim's lease ran out, and no others.
    pub(crate) async fn take_lapsed(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
    ) -> Result<Vec<LockedGroup>, sqlx::Error> {
        taken(&self.in_flight.take_lapsed, conn, queue, n).await
    }

    /// Locks the queue for this claim, and counts what is in flight.
    pub(crate) async fn room(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Room, sqlx::Error> {
        let lock = self.in_flight.lock.query().bind(queue);
        let Some(row) = lock.fetch_optional(&mut *conn).await? else {
            return Ok(Room::Busy);
        };
        if row.try_get(1)? {
            return Ok(Room::Paused);
        }
        let Some(limit) = row.try_get::<Option<i32>, _>(0)? else {
            return Ok(Room::For(None));
        };
        let count = self.in_flight.count.query().bind(queue);
        let claimed: i64 = count.fetch_one(conn).await?.try_get(0)?;
        Ok(Room::For(Some(usize::try_from(i64::from(limit) - claimed).unwrap_or(0))))
    }
}

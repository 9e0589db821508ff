//! In flight: the limit of a queue's jobs that are claimed at once, over the whole fleet.
//!
//! Whoever may add to them has the queue's row locked, and counts in a new statement. What others settle meanwhile only
//! makes it less. So the limit holds exactly, and after crashes too: a claim counts until its job is settled, and a
//! take-over, which does not add to the count, is allowed beyond it (or a fleet that crashed would never go on).

use sea_query::{Expr, LockBehavior, LockType};
use sqlx::{PgConnection, Row};

use super::Store;
use super::template::{Names, PG, Template, select, sql};

#[derive(Debug)]
pub(super) struct Statements {
    lock: Template,
    count: Template,
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
    pub(super) fn new(names: &Names) -> Self {
        Self { lock: lock(names), count: count(names) }
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

/// The jobs that are claimed. Their leases do not matter.
fn count(names: &Names) -> Template {
    let sub = |query: sea_query::SelectStatement| Expr::SubQuery(None, Box::new(query.into()));
    let groups = select()
        .expr(sql("coalesce(sum(g.batch_size), 0)"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.job_id is not null"))
        .to_owned();
    let loose = select()
        .expr(sql("count(*)"))
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.group_id is null and j.status = 'started'"))
        .to_owned();
    let query =
        select().expr(Expr::cust_with_exprs("$1 + $2", [sub(groups), sub(loose)])).to_owned();
    Template::new(query.build(PG))
}

impl Store {
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

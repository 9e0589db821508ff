//! Boost: what was asleep until its time gets its head start by priority when that has come.
//!
//! Before, it would stand in line as if it had waited for longer than it was asked to sleep, and be taken too early.

use sea_query::{LockBehavior, LockType, Order, UpdateStatement};
use sqlx::PgConnection;

use crate::store::Store;
use crate::store::claim::start::priority_aging;
use crate::store::index_terms::{keyed, same_group};
use crate::store::statement::{Names, Template, cte, limit, select, sql, with};

/// How many sleepers one claim wakes.
const PAGE: i64 = 256;

#[derive(Debug)]
pub(in crate::store) struct Statements {
    groups: Template,
    ungrouped: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self { groups: groups(names), ungrouped: ungrouped(names) }
    }
}

/// Moves the rows of groups whose time has come up in the line. What is locked gets no head start this time.
fn groups(names: &Names) -> Template {
    let due = select()
        .columns([("g", "queue"), ("g", "group_id")])
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.boost > 0 and g.ready_at <= now()"))
        .order_by(("g", "ready_at"), Order::Asc)
        .limit(limit(2))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let boosted = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .value("ready_at", sql(format!("g.ready_at - {}", priority_aging("g.boost"))))
        .value("boost", sql("0"))
        .from("due")
        .and_where(sql(same_group("g", "due")))
        .to_owned();
    with([cte("due", due)], boosted)
}

/// The same for jobs without a group. One whose expiry came first has none, and is not here.
fn ungrouped(names: &Names) -> Template {
    let waiting = "j.group_id is null and j.status = 'queued' and j.priority > 0 \
                   and j.turn_at >= j.run_at and j.run_at <= now()";
    let due = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1"))
        .and_where(sql(waiting))
        .order_by(("j", "run_at"), Order::Asc)
        .limit(limit(2))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let boosted = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("turn_at", sql(format!("j.turn_at - {}", priority_aging("j.priority"))))
        .from("due")
        .and_where(sql(keyed("j.id", "due.id")))
        .to_owned();
    with([cte("due", due)], boosted)
}

impl Store {
    /// Gives due sleepers their head start; how many groups it were, and whether more may be waiting.
    pub(crate) async fn age_priority_groups(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<(usize, bool), sqlx::Error> {
        aging(conn, &self.aging.groups, queue).await
    }

    /// The same for jobs without a group.
    pub(crate) async fn age_priority_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<(usize, bool), sqlx::Error> {
        aging(conn, &self.aging.ungrouped, queue).await
    }
}

async fn aging(
    conn: &mut PgConnection,
    template: &Template,
    queue: &str,
) -> Result<(usize, bool), sqlx::Error> {
    let boosted = template.query().bind(queue).bind(PAGE).execute(conn).await?.rows_affected();
    Ok((usize::try_from(boosted).unwrap_or(usize::MAX), boosted == PAGE.unsigned_abs()))
}

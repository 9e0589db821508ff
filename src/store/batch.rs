//! A claim of several jobs of a group, received together: what a take-over does with those behind the first.

use sea_query::{JoinType, LockBehavior, LockType, UpdateStatement};
use sqlx::PgConnection;

use super::claim::history_entry;
use super::template::{Names, Template, cte, groups_of, select, sql, with};
use super::{Store, unfinished};

#[derive(Debug)]
pub(super) struct Statements {
    give_back: Template,
}

impl Statements {
    pub(super) fn new(names: &Names) -> Self {
        Self { give_back: give_back(names) }
    }
}

/// Queues the started jobs behind the claimed one again, up to the batch's end. Their receiver may never have come to
/// them, so nothing is held against them. The groups' rows are locked: no ack is in between.
fn give_back(names: &Names) -> Template {
    let behind = select()
        .column(("j", "id"))
        .from("turn")
        .join_as(
            JoinType::InnerJoin,
            names.queue_group(),
            "g",
            sql("g.queue = turn.queue and g.group_id = turn.group_id and g.batch_end is not null"),
        )
        .join_as(
            JoinType::InnerJoin,
            names.job(),
            "j",
            sql("j.queue = g.queue and j.group_id = g.group_id and j.id > g.job_id and j.id <= g.batch_end"),
        )
        .and_where(unfinished("j"))
        .and_where(sql("j.status = 'started'"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let query = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("status", sql("'queued'")),
            ("attempts_forgiven", sql("j.attempts_forgiven + 1")),
            ("history", sql(history_entry("j", "'released'", "null"))),
        ])
        .from("behind")
        .and_where(sql("j.id = behind.id and j.status = 'started'"))
        .to_owned();
    with([cte("turn", groups_of(&[(2, "group_id")])), cte("behind", behind)], query)
}

impl Store {
    /// Gives back what is left of lapsed batches but their first jobs. The groups' rows are locked.
    pub(crate) async fn return_batches(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        groups: &[&str],
    ) -> Result<(), sqlx::Error> {
        let give_back = self.batch.give_back.query().bind(queue).bind(groups);
        give_back.execute(conn).await.map(drop)
    }
}

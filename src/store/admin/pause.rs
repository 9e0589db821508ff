//! Pause and unpause queues and groups, in rows that workers only read.

use std::time::Duration;

use sea_query::{
    Expr, InsertStatement, LockBehavior, LockType, OnConflict, Order, Query, UpdateStatement,
};
use sqlx::{AssertSqlSafe, PgExecutor, Row};

use crate::job::counts::{PausedGroup, PausedQueue};
use crate::store::builder::{PG, cte, render, select, select_into, sql, sub, with};
use crate::store::index_terms::{in_group, in_order, status_in, unfinished};
use crate::store::literal::literal;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    PAUSE_QUEUE = pause_queue;
    UNPAUSE_QUEUE = unpause_queue;
    PAUSE_GROUP = pause_group;
    PAUSED_QUEUE = paused_queue;
    PAUSED_GROUPS = paused_groups;
}

/// The first pause gives the time, the last one the reason.
fn say_paused(conflict: &mut OnConflict, table: &str) -> OnConflict {
    conflict
        .value("paused_at", sql(format!("coalesce({table}.paused_at, excluded.paused_at)")))
        .value("pause_reason", sql("excluded.pause_reason"))
        .to_owned()
}

/// Waits for a claim of a queue with a limit, for its milliseconds.
fn pause_queue(names: &Names) -> String {
    let mut insert = InsertStatement::new();
    insert
        .into_table(names.queue().alias("old"))
        .columns(["name", "paused_at", "pause_reason"])
        .on_conflict(say_paused(&mut OnConflict::column("name"), "old"));
    select_into(
        &mut insert,
        select().exprs([sql("?1"), sql("clock_timestamp()"), sql("?2")]).to_owned(),
    );
    render(insert.build(PG))
}

fn unpause_queue(names: &Names) -> String {
    let unpaused = UpdateStatement::new()
        .table(names.queue())
        .values([("paused_at", sql("null")), ("pause_reason", sql("null"))])
        .and_where(sql("name = ?1 and paused_at is not null"))
        .returning(Query::returning().column("name"))
        .to_owned();
    let query = select().expr(sql("pg_notify(?2, unpaused.name)")).from("unpaused").to_owned();
    with([cte("unpaused", unpaused)], query)
}

/// Waits for a claim that defers the group as paused, for its milliseconds. Touches no group's row:
/// a handler may have that.
fn pause_group(names: &Names) -> String {
    let mut insert = InsertStatement::new();
    insert
        .into_table(names.group_setting().alias("old"))
        .columns(["queue", "group_id", "paused_at", "pause_reason"])
        .on_conflict(say_paused(&mut OnConflict::columns(["queue", "group_id"]), "old"));
    select_into(
        &mut insert,
        select().exprs([sql("?1"), sql("?2"), sql("clock_timestamp()"), sql("?3")]).to_owned(),
    );
    render(insert.build(PG))
}

/// Unpauses a group in two statements of one message: the second one's snapshot is younger than the
/// setting's lock. A claim that saw the group paused has either written that already, and the flag
/// wakes the group; or it will find the setting locked or gone. In one statement, a job that ran at
/// its begin would not be flagged.
fn unpause_group(names: &Names, queue: &str, group: &str) -> String {
    let (of_queue, of_group) = (literal(queue), literal(group));
    let unpaused = UpdateStatement::new()
        .table(names.group_setting())
        .values([("paused_at", sql("null")), ("pause_reason", sql("null"))])
        .and_where(sql(format!("queue = {of_queue} and group_id = {of_group}")))
        .and_where(sql("paused_at is not null"))
        .returning(Query::returning().column("group_id"))
        .to_owned();
    let mut first = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(in_group("j", &of_queue, &of_group, None))
        .and_where(unfinished("j"))
        .and_where(sql("j.status = 'queued'"))
        .limit(1)
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    in_order(&mut first, "j", &Order::Asc);
    let flagged = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("flagged", sql("true"))
        .and_where(Expr::cust_with_expr("j.id = $1", sub(first)))
        .and_where(sql(status_in("j.", "'queued'")))
        .to_owned();
    let channel = literal(&names.channel());
    [
        unpaused.to_string(PG),
        flagged.to_string(PG),
        format!("select pg_notify({channel}, {of_queue})"),
    ]
    .join("; ")
}

fn paused_queue(names: &Names) -> String {
    let query = select()
        .columns(["name", "paused_at", "pause_reason"])
        .expr(sql("extract(epoch from clock_timestamp() - q.paused_at)::float8"))
        .from_as(names.queue(), "q")
        .and_where(sql("q.name = ?1 and q.paused_at is not null"))
        .to_owned();
    render(query.build(PG))
}

fn paused_groups(names: &Names) -> String {
    let query = select()
        .columns(["group_id", "paused_at", "pause_reason"])
        .expr(sql("extract(epoch from clock_timestamp() - s.paused_at)::float8"))
        .from_as(names.group_setting(), "s")
        .and_where(sql("s.queue = ?1 and s.paused_at is not null"))
        .order_by("paused_at", Order::Asc)
        .to_owned();
    render(query.build(PG))
}

impl Store {
    pub(crate) async fn pause_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        reason: Option<&str>,
    ) -> Result<(), sqlx::Error> {
        self.query(&PAUSE_QUEUE).bind(queue).bind(reason).execute(executor).await.map(drop)
    }

    /// Ends the queue's pause; returns whether it was paused.
    pub(crate) async fn unpause_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<bool, sqlx::Error> {
        let unpause = self.query(&UNPAUSE_QUEUE).bind(queue).bind(self.names.channel());
        Ok(unpause.fetch_optional(executor).await?.is_some())
    }

    pub(crate) async fn pause_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        reason: Option<&str>,
    ) -> Result<(), sqlx::Error> {
        let pause = self.query(&PAUSE_GROUP).bind(queue).bind(group).bind(reason);
        pause.execute(executor).await.map(drop)
    }

    /// Ends the group's pause; returns whether it was paused.
    pub(crate) async fn unpause_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<bool, sqlx::Error> {
        let text = unpause_group(&self.names, queue, group);
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(executor).await?;
        // One is the notification's.
        Ok(rows.len() > 1)
    }

    pub(crate) async fn paused_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Option<PausedQueue>, sqlx::Error> {
        let row = self.query(&PAUSED_QUEUE).bind(queue).fetch_optional(executor).await?;
        row.map(|row| {
            Ok(PausedQueue {
                queue: row.try_get(0)?,
                since: row.try_get(1)?,
                reason: row.try_get(2)?,
                age: age(row.try_get(3)?),
            })
        })
        .transpose()
    }

    pub(crate) async fn paused_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<PausedGroup>, sqlx::Error> {
        let rows = self.query(&PAUSED_GROUPS).bind(queue).fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                Ok(PausedGroup {
                    queue: queue.to_owned(),
                    group: row.try_get(0)?,
                    since: row.try_get(1)?,
                    reason: row.try_get(2)?,
                    age: age(row.try_get(3)?),
                })
            })
            .collect()
    }
}

fn age(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

//! Several jobs of a group under one claim: those that a turn claims ahead, and those that were received together.

use std::collections::{HashMap, HashSet};

use sea_query::{
    DeleteStatement, Expr, JoinType, LockBehavior, LockType, Order, Query, UnionType,
    UpdateStatement,
};
use sqlx::{PgConnection, Row};

use crate::store::Store;
use crate::store::claim::start::{Claim, ClaimOptions, history_entry};
use crate::store::index_terms::{in_group, in_order, keyed, same_group, started, unfinished};
use crate::store::settle::one::KeepFinished;
use crate::store::statement::{
    Names, PG, Template, cte, groups_of, limit, rows_of, select, sql, with,
};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    ahead: Template,
    give_back: Template,
    requeue_unstarted: Template,
    succeeded: Template,
    delete: Template,
    already_recorded: Template,
}

/// A job of a turn whose handler has returned, and whose success is still to be recorded.
#[derive(Debug, Clone)]
pub(crate) struct UnrecordedSuccess {
    pub(crate) job: i64,
    /// As JSON.
    pub(crate) result: String,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self {
            ahead: ahead(names),
            give_back: give_back(names),
            requeue_unstarted: requeue_unstarted(names),
            succeeded: succeeded(names),
            delete: delete(names),
            already_recorded: already_recorded(names),
        }
    }
}

/// Locks what may be claimed together with the heads: next in order, due, and never begun. Such a job loses nothing if its
/// worker dies before it comes to run; one whose attempts are limited to 1 would.
fn ahead(names: &Names) -> Template {
    let mut following = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(in_group("j", "?1", "turn.group_id", Some("> turn.job_id")))
        .and_where(unfinished("j"))
        .limit(limit(4))
        .to_owned();
    in_order(&mut following, "j", &Order::Asc);
    let next = select()
        .columns([("turn", "group_id"), ("f", "id")])
        .from("turn")
        .join_lateral(JoinType::InnerJoin, following, "f", sql("true"))
        .to_owned();
    let locked = select()
        .column(("j", "id"))
        .from("next")
        .join_as(JoinType::InnerJoin, names.job(), "j", sql(keyed("j.id", "next.id")))
        .and_where(sql("j.finished_at is null and j.status <> 'started' and j.run_at <= now()"))
        // By the time its turn comes it may have expired, and only a claim sees that.
        .and_where(sql("j.expires_at is null"))
        .and_where(sql("coalesce(j.created_at >= ?7, true)"))
        .and_where(sql("j.attempts = j.attempts_forgiven and coalesce(j.max_attempts, ?5) > 1"))
        .and_where(sql("(j.lease_ms is null or not ?6)"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    // Not joined: without an index, that would take the square of their number.
    let ours = select().expr(sql("null")).column("id").from("locked").to_owned();
    let query = select()
        .columns([("next", "group_id"), ("next", "id")])
        .from("next")
        .union(UnionType::All, ours)
        .to_owned();
    let turn = rows_of(&[(2, "group_id"), (3, "job_id")]);
    with([cte("turn", turn), cte("next", next), cte("locked", locked)], query)
}

/// Queues the started jobs behind the first that has not ended again, up to the batch's end. Whoever had the claim may never
/// have come to them, so nothing is held against them. The groups' rows are locked: no ack is in between.
fn give_back(names: &Names) -> Template {
    let batch_jobs = names.quoted("batch_jobs");
    let first = format!(
        "(select min(b.id) from {batch_jobs}(g.queue, g.group_id, g.job_id, g.batch_end) b(id))"
    );
    let batch = select()
        .columns([("g", "queue"), ("g", "group_id"), ("g", "batch_end")])
        .expr_as(sql(first), "first")
        .from("turn")
        .join_as(JoinType::InnerJoin, names.queue_group(), "g", sql(same_group("g", "turn")))
        .and_where(sql("g.batch_end is not null"))
        .to_owned();
    let left = format!(
        "j.id = any(array(select b.id from \
         {batch_jobs}(batch.queue, batch.group_id, batch.first + 1, batch.batch_end) b(id)))"
    );
    let jobs = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(sql(left))
        .and_where(sql(started("j.")))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let behind = select()
        .column(("j", "id"))
        .from("batch")
        .join_lateral(JoinType::InnerJoin, jobs, "j", sql("true"))
        .to_owned();
    let query = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("status", sql("'queued'")),
            ("attempts_forgiven", sql("j.attempts_forgiven + 1")),
            ("history", sql(history_entry("j", "'released'", "null"))),
        ])
        .from("behind")
        .and_where(sql(format!("{} and {}", keyed("j.id", "behind.id"), started("j."))))
        .to_owned();
    let turn = groups_of(&[(2, "group_id")]);
    with([cte("turn", turn), cte("batch", batch), cte("behind", behind)], query)
}

/// Queues jobs again that were claimed ahead and not begun: as if they had not been.
fn requeue_unstarted(names: &Names) -> Template {
    let query = UpdateStatement::new()
        .table(names.job())
        .value("status", sql("'queued'"))
        .value("attempts", sql("attempts - 1"))
        .value("last_started_at", sql("case when attempts > 1 then last_started_at end"))
        .and_where(sql(format!("id = any(?1) and {}", started(""))))
        .to_owned();
    Template::new(query.build(PG))
}

/// Whether the queue or the group was paused: a turn does not go on then.
fn paused(names: &Names) -> Expr {
    let queue = select()
        .expr(sql("1"))
        .from_as(names.queue(), "q")
        .and_where(sql("q.name = ?1 and q.paused_at is not null"))
        .to_owned();
    let group = select()
        .expr(sql("1"))
        .from_as(names.group_setting(), "s")
        .and_where(sql("s.queue = ?1 and s.group_id = ?2 and s.paused_at is not null"))
        .to_owned();
    Expr::cust_with_exprs("$1 or $2", [Expr::exists(queue), Expr::exists(group)])
}

/// Records successes of a group that this transaction has locked by its token. Whatever was recorded already stays.
fn succeeded(names: &Names) -> Template {
    let ended = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("status", sql("'succeeded'")),
            ("finished_at", sql("clock_timestamp()")),
            ("result", sql("done.result::jsonb")),
            ("error", sql("null")),
        ])
        .from("done")
        .and_where(sql(format!("{} and {}", keyed("j.id", "done.id"), started("j."))))
        .returning(Query::returning().expr(sql("j.id")))
        .to_owned();
    let done = rows_of(&[(3, "id"), (4, "result")]);
    let query = select().expr_as(paused(names), "paused").to_owned();
    with([cte("done", done), cte("ended", ended)], query)
}

/// The same where succeeded jobs are not kept.
fn delete(names: &Names) -> Template {
    let ended = DeleteStatement::new()
        .from_table(names.job())
        .and_where(sql(format!("id = any(?3) and {}", started(""))))
        .returning(Query::returning().columns(["id"]))
        .to_owned();
    let query = select().expr_as(paused(names), "paused").to_owned();
    with([cte("ended", ended)], query)
}

/// Locks the group's row by its token where a job of the claim has ended already.
fn already_recorded(names: &Names) -> Template {
    let started = select()
        .expr(sql("1"))
        .from_as(names.job(), "j")
        .and_where(sql(format!("j.id = ?2 and {}", started("j."))))
        .to_owned();
    let query = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = ?1"))
        .and_where(Expr::not_exists(started))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    Template::new(query.build(PG))
}

impl Store {
    /// What may be claimed together with these heads, up to `n` for each; in order, and locked. The groups' rows and the
    /// heads are locked.
    pub(crate) async fn ahead(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        heads: &[(&str, i64)],
        n: i64,
        options: ClaimOptions,
    ) -> Result<HashMap<String, Vec<i64>>, sqlx::Error> {
        let (groups, jobs): (Vec<&str>, Vec<i64>) = heads.iter().copied().unzip();
        let ahead = self.batch.ahead.query().bind(queue).bind(groups).bind(jobs).bind(n);
        let ahead =
            ahead.bind(options.max_attempts).bind(options.own_lease).bind(options.ignore_before);
        let mut next: HashMap<String, Vec<i64>> = HashMap::new();
        let mut ours: HashSet<i64> = HashSet::new();
        for row in ahead.fetch_all(conn).await? {
            let id = row.try_get(1)?;
            match row.try_get(0)? {
                Some(group) => next.entry(group).or_default().push(id),
                None => drop(ours.insert(id)),
            }
        }
        for line in next.values_mut() {
            line.sort_unstable();
            // One that is not to be had ends the line: order comes first.
            let until = line.iter().position(|id| !ours.contains(id)).unwrap_or(line.len());
            line.truncate(until);
        }
        Ok(next)
    }

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

    /// Gives back what was claimed together with a job and not begun. The group's row is locked by the claim's token.
    pub(crate) async fn requeue_unstarted(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<(), sqlx::Error> {
        if claim.behind.is_empty() {
            return Ok(());
        }
        self.batch.requeue_unstarted.query().bind(&claim.behind).execute(conn).await.map(drop)
    }

    /// Whether a claim has outlived its job: that was recorded, and the answer to the commit was lost. Then the group's row
    /// is locked.
    pub(crate) async fn already_recorded(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let already_recorded =
            self.batch.already_recorded.query().bind(claim.token).bind(claim.job);
        Ok(already_recorded.fetch_optional(conn).await?.is_some())
    }

    /// Records successes of a group's turn, which stays claimed; whether the queue or the group is paused. The group's
    /// row is locked by the claim's token.
    pub(crate) async fn record_done(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
        done: &[UnrecordedSuccess],
        keep: KeepFinished,
    ) -> Result<bool, sqlx::Error> {
        let jobs: Vec<i64> = done.iter().map(|done| done.job).collect();
        let query = if keep.succeeded {
            let results: Vec<&str> = done.iter().map(|done| done.result.as_str()).collect();
            self.batch.succeeded.query().bind(queue).bind(group).bind(jobs).bind(results)
        } else {
            self.batch.delete.query().bind(queue).bind(group).bind(jobs)
        };
        query.fetch_one(conn).await?.try_get("paused")
    }
}

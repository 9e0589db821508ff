//! Settle of many at once: the successes of leases, each group's turn passed on with them (P4, P10).

use std::collections::HashSet;

use sea_query::{
    DeleteStatement, Expr, JoinType, LockBehavior, LockType, Order, SelectStatement,
    SubQueryStatement, UpdateStatement,
};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::store::Store;
use crate::store::claim::followers::UnrecordedSuccess;
use crate::store::claim::start::{Claim, priority_aging};
use crate::store::index_terms::{in_group, in_order, keyed, none_of, started, unfinished};
use crate::store::settle::one::freed;
use crate::store::statement::{Names, Template, cte, rows_of, select, sql, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    lock_alone: Template,
    /// By whether jobs are kept.
    groups: [Template; 2],
    ungrouped: [Template; 2],
}

/// A claim all of whose jobs have succeeded.
#[derive(Debug)]
pub(crate) struct Succeeded<'a> {
    pub(crate) queue: &'a str,
    pub(crate) claim: &'a Claim,
    /// The jobs of its turn that are not recorded yet, but the last.
    pub(crate) earlier: &'a [UnrecordedSuccess],
    /// Of the claim's job: as JSON.
    pub(crate) result: &'a str,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self {
            lock_alone: lock_groups(names, LockType::Update),
            groups: [false, true].map(|keep| groups(names, keep)),
            ungrouped: [false, true].map(|keep| ungrouped(names, keep)),
        }
    }
}

/// Locks the rows of the groups that are still these claims'. A delete needs `LockType::Update`; an adopter that shares a row
/// has it skipped, and nothing may have written the rows before in this transaction.
pub(in crate::store) fn lock_groups(names: &Names, lock: LockType) -> Template {
    let row = select()
        .column(("g", "claim"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = claimed.claim"))
        .limit(1)
        .lock_with_tables_behavior(lock, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let query = select()
        .column(("g", "claim"))
        .from("claimed")
        .join_lateral(JoinType::InnerJoin, row, "g", sql("true"))
        .to_owned();
    with([cte("claimed", rows_of(&[(1, "claim")]))], query)
}

/// What is written of the jobs that succeeded, or their delete.
fn ended(names: &Names, keep: bool) -> SubQueryStatement {
    if !keep {
        let delete = DeleteStatement::new()
            .from_table(names.job())
            .and_where(sql(format!("id = any(array(select id from mine)) and {}", started(""))))
            .to_owned();
        return delete.into();
    }
    UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("status", sql("'succeeded'")),
            ("finished_at", sql("clock_timestamp()")),
            ("result", sql("mine.result::jsonb")),
            ("error", sql("null")),
        ])
        .values(
            ["claim", "lease_until", "suspect", "claimed_by"].map(|column| (column, sql("null"))),
        )
        .from("mine")
        .and_where(sql(format!("{} and {}", keyed("j.id", "mine.id"), started("j."))))
        .to_owned()
        .into()
}

/// Records the jobs of groups whose rows this transaction has locked alone in a statement before, passes their turns on, and
/// deletes the rows of those that are drained.
fn groups(names: &Names, keep: bool) -> Template {
    let row = select()
        .columns([("g", "queue"), ("g", "group_id"), ("g", "ctid")])
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = claimed.claim"))
        .limit(1)
        .to_owned();
    // As of before the statement: the claims' own jobs are unfinished still.
    let mut next = select()
        .columns([("h", "id"), ("h", "priority")])
        .from_as(names.job(), "h")
        .and_where(in_group("h", "g.queue", "g.group_id", Some("> claimed.job_id")))
        .and_where(unfinished("h"))
        .limit(1)
        .to_owned();
    in_order(&mut next, "h", &Order::Asc);
    let any = select()
        .expr(sql("1"))
        .from_as(names.job(), "u")
        .and_where(sql("u.queue = g.queue and u.group_id = g.group_id"))
        .and_where(unfinished("u"))
        .and_where(sql("u.id <> all((?3::bigint[])[claimed.first:claimed.last])"))
        .to_owned();
    let ours = select()
        .columns([("g", "ctid"), ("claimed", "claim"), ("next", "priority")])
        // Most have a job behind it, and nothing else is looked for then.
        .expr_as(Expr::cust_with_expr("next.id is null and $1", none_of(any)), "drained")
        .from("claimed")
        .join_lateral(JoinType::InnerJoin, row, "g", sql("true"))
        .join_lateral(JoinType::LeftJoin, next, "next", sql("true"))
        .to_owned();
    let passed = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .values(freed())
        .value(
            "ready_at",
            sql(format!("clock_timestamp() - {}", priority_aging("coalesce(ours.priority, 0)"))),
        )
        .from("ours")
        .and_where(sql("g.ctid = ours.ctid and not ours.drained"))
        .to_owned();
    let retired = DeleteStatement::new()
        .from_table(names.queue_group())
        .and_where(sql("halted_at is null"))
        .and_where(sql("ctid = any (array(select ctid from ours where drained))"))
        .to_owned();
    let of_claim = [(1, "claim"), (2, "job_id"), (6, "first"), (7, "last")];
    let done = rows_of(&[(3, "id"), (4, "result"), (5, "claim")]);
    // What is no condition of its own is no join either, which would compare each with each: it is looked up in a hash.
    let mine = select()
        .columns(["id", "result"])
        .from("done")
        .and_where(sql("(claim in (select claim from ours)) is true"))
        .to_owned();
    let parts = [
        cte("claimed", rows_of(&of_claim)),
        cte("ours", ours),
        cte("done", done),
        cte("mine", mine),
        cte("ended", ended(names, keep)),
        cte("passed", passed),
        cte("retired", retired),
    ];
    with(parts, select().column("claim").from("ours").to_owned())
}

/// Locks a job without a group that is still the claim's.
pub(in crate::store) fn lock_ungrouped(names: &Names) -> SelectStatement {
    select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(sql("j.id = claimed.job_id and j.claim = claimed.claim"))
        .and_where(sql(started("j.")))
        .limit(1)
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned()
}

/// Records jobs without a group, whose own rows are locked.
fn ungrouped(names: &Names, keep: bool) -> Template {
    let row = lock_ungrouped(names);
    let mine = select()
        .columns([("j", "id"), ("claimed", "claim"), ("claimed", "result")])
        .from("claimed")
        .join_lateral(JoinType::InnerJoin, row, "j", sql("true"))
        .to_owned();
    let claimed = rows_of(&[(1, "claim"), (2, "job_id"), (3, "result")]);
    let parts = [cte("claimed", claimed), cte("mine", mine), cte("ended", ended(names, keep))];
    with(parts, select().column("claim").from("mine").to_owned())
}

impl Store {
    /// Settles claims of which nothing but successes is to be recorded, all with groups or all without; the tokens of
    /// those that it did. Others are stale, or somebody has a row for a moment. Nothing may have written the groups' rows
    /// before in this transaction.
    pub(crate) async fn settle_many(
        &self,
        conn: &mut PgConnection,
        claims: &[Succeeded<'_>],
        keep: bool,
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let keep = usize::from(keep);
        let tokens: Vec<Uuid> = claims.iter().map(|of| of.claim.token).collect();
        if claims.iter().any(|of| of.claim.group.is_none()) {
            let jobs: Vec<i64> = claims.iter().map(|of| of.claim.job).collect();
            let results: Vec<&str> = claims.iter().map(|of| of.result).collect();
            let settle =
                self.settle_many.ungrouped[keep].query().bind(tokens).bind(jobs).bind(results);
            return read(settle.fetch_all(conn).await?);
        }
        let lock = self.settle_many.lock_alone.query().bind(tokens);
        let locked = read(lock.fetch_all(&mut *conn).await?)?;
        let locked = claims.iter().filter(|of| locked.contains(&of.claim.token));
        settle_groups(&self.settle_many.groups[keep], conn, locked).await
    }
}

/// `first` and `last` say which of all jobs are a claim's.
async fn settle_groups<'a>(
    template: &Template,
    conn: &mut PgConnection,
    claims: impl Iterator<Item = &'a Succeeded<'a>>,
) -> Result<HashSet<Uuid>, sqlx::Error> {
    let (mut tokens, mut turns) = (Vec::new(), Vec::new());
    let (mut jobs, mut results, mut of) = (Vec::new(), Vec::new(), Vec::new());
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let place = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    for Succeeded { claim, earlier, result, .. } in claims {
        tokens.push(claim.token);
        turns.push(claim.job);
        first.push(place(jobs.len() + 1));
        for done in *earlier {
            jobs.push(done.job);
            results.push(done.result.as_str());
        }
        jobs.push(claim.job);
        results.push(result);
        last.push(place(jobs.len()));
        of.resize(jobs.len(), claim.token);
    }
    if tokens.is_empty() {
        return Ok(HashSet::new());
    }
    let settle = template.query().bind(tokens).bind(turns);
    let settle = settle.bind(jobs).bind(results).bind(of).bind(first).bind(last);
    read(settle.fetch_all(conn).await?)
}

fn read(rows: Vec<PgRow>) -> Result<HashSet<Uuid>, sqlx::Error> {
    rows.into_iter().map(|row| row.try_get(0)).collect()
}

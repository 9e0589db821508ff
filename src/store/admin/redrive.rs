//! Operations on many jobs at once: redrive, release a node. Each statement waits for no handler.

use sea_query::{
    CommonTableExpression, Expr, ExprTrait, JoinType, LockBehavior, LockType, Order, Query,
    SelectStatement, UpdateStatement,
};
use sqlx::{PgConnection, PgExecutor, Row};

use crate::store::admin::control::{has_unit, requeued, unhalt_halted_by};
use crate::store::builder::{cte, limit, select, sql, sub, with};
use crate::store::fragments::GRACE;
use crate::store::index_terms::{keyed, same_group, status_in};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    REDRIVE = redrive;
    LAST_JOB = |names| names.sql("select coalesce(max(id), 0) from {job}");
    RELEASE = release;
}

/// What a redrive queued.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RedriveReport {
    pub(crate) jobs: u64,
    pub(crate) groups: u64,
    pub(crate) overtaken: u64,
    /// Nothing was done: another transaction has a row of the unit.
    pub(crate) busy: bool,
}

/// Whether `j` is the first job of its group among `of`: its flag is enough for all of them.
pub(in crate::store) fn is_first(of: &str) -> Expr {
    sql(format!(
        "j.flagged or j.id in (select min(id) from {of} where group_id is not null group by group_id)"
    ))
}

/// Later jobs, in the groups of `of` and behind the first of them, that have begun to run and are
/// none of them.
pub(in crate::store) fn overtaken(names: &Names, of: &'static str) -> Expr {
    let first = select()
        .columns(["queue", "group_id"])
        .expr_as(sql("min(id)"), "id")
        .from(of)
        .group_by_columns(["queue", "group_id"])
        .to_owned();
    let later = select()
        .expr(sql("count(*)"))
        .from_as(names.job(), "l")
        .join_subquery(
            JoinType::InnerJoin,
            first,
            "first",
            sql("l.queue = first.queue and l.group_id = first.group_id"),
        )
        .and_where(sql("l.id > first.id and l.attempts > 0"))
        .and_where(sql(format!("l.id not in (select id from {of})")))
        .to_owned();
    sub(later)
}

/// The numbers of jobs and groups written, and of later jobs that have run.
pub(in crate::store) fn redriven(names: &Names) -> SelectStatement {
    select()
        .expr(sql("(select count(*) from written)"))
        .expr(sql("(select count(distinct group_id) from written)"))
        .expr(overtaken(names, "written"))
        .to_owned()
}

/// Queues a batch of a queue's dead letters, the lowest ids first, and unhalts the groups that they
/// halted. Locks the jobs, skipping locked ones, then the rows of the halted groups.
fn redrive(names: &Names) -> String {
    let dead = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.status = 'failed'"))
        .and_where(has_unit(names).not())
        .to_owned();
    // Sorted here, from the index of finished jobs: the order of the primary key would go through
    // all history.
    let first =
        select().column("id").from("dead").order_by("id", Order::Asc).limit(limit(2)).to_owned();
    let target = select()
        .columns([("j", "id"), ("j", "queue"), ("j", "group_id")])
        .from("first_dead")
        .join_as(JoinType::InnerJoin, names.job(), "j", sql(keyed("j.id", "first_dead.id")))
        .and_where(sql(status_in("j.", "'failed'")))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let written = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values(requeued())
        .value("flagged", is_first("target"))
        .from("target")
        .and_where(sql(keyed("j.id", "target.id")))
        .returning(Query::returning().columns([("j", "id"), ("j", "queue"), ("j", "group_id")]))
        .to_owned();
    with(
        [
            cte("dead", dead),
            cte("first_dead", first),
            cte("target", target),
            cte("written", written),
            unhalt_halted_by(names),
        ],
        redriven(names),
    )
}

/// Suspects the claims of a node's processors, which are taken over a grace later. Locks group
/// rows, then the rows of jobs without a group, skipping those that a transaction holds. A claim
/// that is suspected already keeps its time.
fn release(names: &Names) -> String {
    let suspect = |table: sea_query::TableRef, until: &'static str| {
        UpdateStatement::new()
            .table(table)
            .value("suspect", sql("t.claim"))
            .value(until, sql("clock_timestamp() + make_interval(secs => ?2)"))
            .to_owned()
    };
    let node = select()
        .column("id")
        .from_as(names.processor(), "p")
        .and_where(sql("p.node = ?1"))
        .to_owned();
    let groups = select()
        .columns([("g", "queue"), ("g", "group_id")])
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claimed_by in (select id from node) and g.job_id is not null"))
        .and_where(sql("g.suspect is distinct from g.claim"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let groups_written = suspect(names.queue_group().alias("t"), "ready_at")
        .from("groups")
        .and_where(sql(same_group("t", "groups")))
        .and_where(sql("coalesce(t.job_id, 0) > 0"))
        .returning(Query::returning().columns([("t", "group_id")]))
        .to_owned();
    let jobs = select()
        .column(("j", "id"))
        .from_as(names.job(), "j")
        .and_where(sql("j.claimed_by in (select id from node)"))
        .and_where(sql("j.group_id is null and j.status = 'started'"))
        .and_where(sql("j.suspect is distinct from j.claim"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let jobs_written = suspect(names.job().alias("t"), "lease_until")
        .from("jobs")
        .and_where(sql(keyed("t.id", "jobs.id")))
        .returning(Query::returning().columns([("t", "id")]))
        .to_owned();
    let ctes: [CommonTableExpression; 5] = [
        cte("node", node),
        cte("groups", groups),
        cte("groups_written", groups_written),
        cte("jobs", jobs),
        cte("jobs_written", jobs_written),
    ];
    let query = select()
        .expr(sql("(select count(*) from groups_written)"))
        .expr(sql("(select count(*) from jobs_written)"))
        .to_owned();
    with(ctes, query)
}

impl Store {
    /// Queues up to `limit` dead letters.
    pub(crate) async fn redrive(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        limit: i64,
    ) -> Result<RedriveReport, sqlx::Error> {
        let row = self.query(&REDRIVE).bind(queue).bind(limit).fetch_one(executor).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok(RedriveReport { jobs: count(0)?, groups: count(1)?, overtaken: count(2)?, busy: false })
    }

    /// Returns the highest id so far.
    pub(crate) async fn last_job(&self, conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
        self.query(&LAST_JOB).fetch_one(conn).await?.try_get(0)
    }

    /// Suspects the claims of a node; returns how many groups and jobs without a group.
    pub(crate) async fn release_node(
        &self,
        executor: impl PgExecutor<'_>,
        node: &str,
    ) -> Result<(u64, u64), sqlx::Error> {
        let release = self.query(&RELEASE).bind(node).bind(GRACE.as_secs_f64());
        let row = release.fetch_one(executor).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok((count(0)?, count(1)?))
    }
}

//! Operations on many jobs at once: redrive, release a node. Each statement waits for no handler.

use sea_query::{
    CommonTableExpression, Expr, JoinType, LockBehavior, LockType, Query, SelectStatement,
    UpdateStatement,
};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::store::admin::control::Acting;
use crate::store::builder::{cte, select, sql, sub, with};
use crate::store::fragments::{GRACE, recorded};
use crate::store::index_terms::{keyed, same_group};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    REDRIVE = |names| names.sql(
        "select r.jobs, r.groups, r.overtaken from {redrive}($1, $2, $3, $4, $5) r",
    );
    REDRIVE_JOBS = |names| names.sql(
        "select r.jobs, r.groups, r.overtaken from {redrive_jobs}($1, $2, $3) r",
    );
    DISCARD_JOBS = |names| names.sql("select {discard_jobs}($1, $2, $3)");
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
        .expr(recorded(
            names,
            "'release_node', null, null, null, coalesce(?3::text || ' ', '') || '(node ' || ?1 || ')', \
             (select count(*) from groups_written) + (select count(*) from jobs_written)",
            "?4",
        ))
        .to_owned();
    with(ctes, query)
}

impl Store {
    /// Queues up to `limit` dead letters of a queue, or of one group of it.
    pub(crate) async fn redrive(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: Option<&str>,
        limit: i32,
        acting: Acting<'_>,
    ) -> Result<RedriveReport, sqlx::Error> {
        let redrive = self.query(&REDRIVE).bind(queue).bind(group).bind(limit);
        redrive_report(&redrive.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?)
    }

    /// Queues those of the jobs that are dead letters.
    pub(crate) async fn redrive_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        acting: Acting<'_>,
    ) -> Result<RedriveReport, sqlx::Error> {
        let redrive = self.query(&REDRIVE_JOBS).bind(jobs.to_vec());
        redrive_report(&redrive.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?)
    }

    /// Cancels those of the jobs that are dead letters; returns how many.
    pub(crate) async fn discard_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        acting: Acting<'_>,
    ) -> Result<u64, sqlx::Error> {
        let discard = self.query(&DISCARD_JOBS).bind(jobs.to_vec());
        let row = discard.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
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
        acting: Acting<'_>,
    ) -> Result<(u64, u64), sqlx::Error> {
        let release = self.query(&RELEASE).bind(node).bind(GRACE.as_secs_f64());
        let release = release.bind(acting.reason).bind(acting.actor);
        let row = release.fetch_one(executor).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok((count(0)?, count(1)?))
    }
}

fn redrive_report(row: &PgRow) -> Result<RedriveReport, sqlx::Error> {
    let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
    Ok(RedriveReport { jobs: count(0)?, groups: count(1)?, overtaken: count(2)?, busy: false })
}

//! Requests about one job or group: cancel, retry, skip, unhalt. Each is one statement and waits
//! for no handler.

use sea_query::{
    Expr, ExprTrait, InsertStatement, JoinType, LockBehavior, LockType, Query, SelectStatement,
    UpdateStatement,
};
use sqlx::{PgExecutor, Row};

use crate::job::job::JobStatus;
use crate::store::builder::{PG, cte, render, select, select_into, sql, sub, with};
use crate::store::fragments::history_entry;
use crate::store::index_terms::status_in;
use crate::store::names::Names;
use crate::store::statement::{Statement, statements};
use crate::store::store::Store;

statements! {
    CANCEL = cancel;
    RETRY = retry;
    SKIP = skip;
    UNHALT_GROUP = unhalt_group;
}

/// What a request found and did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestReport {
    /// The job's status before the request; `None` if there is no such job.
    pub(crate) status: Option<JobStatus>,
    /// The request was carried out on the job's row.
    pub(crate) done: bool,
    /// Others were parked with the job, so it was left alone.
    pub(crate) parked: bool,
    /// A retry's later jobs that have run; otherwise 0.
    pub(crate) overtaken: u64,
}

/// The job's row, locked if it has one of the statuses and no other transaction has it.
fn target(names: &Names, statuses: &str) -> SelectStatement {
    select()
        .columns(["id", "queue", "group_id"])
        .from_as(names.job(), "j")
        .and_where(sql(format!("j.id = ?1 and {}", status_in("j.", statuses))))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned()
}

/// The status as the statement's snapshot has it, and whether the row was written.
fn report(names: &Names, overtaken: Expr) -> sea_query::SelectStatement {
    let status = select()
        .expr(sql("j.status::text"))
        .from_as(names.job(), "j")
        .and_where(sql("j.id = ?1"))
        .to_owned();
    select()
        .expr_as(sub(status), "status")
        .expr_as(sql("exists (select from written)"), "done")
        .expr_as(overtaken, "overtaken")
        .expr_as(
            sub(select()
                .expr(has_unit(names))
                .from_as(names.job(), "j")
                .and_where(sql("j.id = ?1"))
                .to_owned()),
            "parked",
        )
        .to_owned()
}

/// What a dead job gets when it is queued. An expiry that is over no longer counts.
pub(in crate::store) fn requeued() -> Vec<(&'static str, Expr)> {
    [
        ("status", "'queued'"),
        ("finished_at", "null"),
        ("run_at", "now()"),
        ("turn_at", "now()"),
        // Over already, it would end the job at once.
        ("expires_at", "case when j.expires_at > now() then j.expires_at end"),
        ("attempts_forgiven", "j.attempts"),
        ("parked_with", "null"),
    ]
    .map(|(column, value)| (column, sql(value)))
    .to_vec()
}

/// What a job gets when it is cancelled.
pub(in crate::store) fn cancelled() -> Vec<(&'static str, Expr)> {
    [("status", "'cancelled'"), ("finished_at", "clock_timestamp()"), ("parked_with", "null")]
        .map(|(column, value)| (column, sql(value)))
        .to_vec()
}

/// Whether jobs are parked with the failed job `j`, or are being parked.
pub(in crate::store) fn has_unit(names: &Names) -> Expr {
    let parked = select()
        .expr(sql("1"))
        .from_as(names.job(), "u")
        .and_where(sql("u.queue = j.queue and u.group_id = j.group_id and u.parked_with = j.id"))
        .and_where(sql("u.status = 'parked'"))
        .to_owned();
    let parking = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = j.queue and g.group_id = j.group_id and g.halt_job_id = j.id"))
        .and_where(sql("g.park_to is not null"))
        .to_owned();
    Expr::cust_with_exprs("($1 or $2)", [Expr::exists(parked), Expr::exists(parking)])
}

/// What a halted group's row gets when its halt ends.
pub(in crate::store) fn unhalted() -> Vec<(&'static str, Expr)> {
    ["halted_at", "halt_reason", "halt_job_id", "halt_until", "halt_then", "park_to"]
        .map(|column| (column, sql("null")))
        .into_iter()
        .chain([("ready_at", sql("clock_timestamp()"))])
        .collect()
}

/// Cancels a queued job and flags it, so that its group's heads are read. A job that runs, or whose
/// row is locked for a moment, gets a request instead: its worker or maintenance carries it out.
fn cancel(names: &Names) -> String {
    let written = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values(cancelled())
        .value("flagged", sql("j.group_id is not null"))
        .from("target")
        .and_where(sql("j.id = ?1 and j.id = target.id"))
        .returning(Query::returning().columns([("j", "id")]))
        .to_owned();
    let busy = select()
        .expr(sql("j.id"))
        .from_as(names.job(), "j")
        .and_where(sql(format!(
            "j.id = ?1 and {} and not exists (select from target)",
            status_in("j.", "'queued', 'started'")
        )))
        .to_owned();
    let mut request = InsertStatement::new();
    request.into_table(names.cancel_request()).columns(["job_id"]);
    select_into(&mut request, busy);
    with(
        [
            cte("target", target(names, "'queued', 'parked'")),
            cte("written", written),
            cte("request", request),
        ],
        report(names, sql("0::int8")),
    )
}

/// Queues a dead job with all its attempts and flags it: it has the lowest id of its group and so
/// runs next. Unhalts a group that it halted.
///
/// Not a job that others were parked with: they are redriven together.
fn retry(names: &Names) -> String {
    let target = target(names, "'failed', 'cancelled'").and_where(has_unit(names).not()).to_owned();
    let written = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values(requeued())
        .value("flagged", sql("j.group_id is not null"))
        .from("target")
        .and_where(sql("j.id = ?1 and j.id = target.id"))
        .returning(Query::returning().columns([("j", "id"), ("j", "queue"), ("j", "group_id")]))
        .to_owned();
    let later = select()
        .expr(sql("count(*)"))
        .from_as(names.job(), "l")
        .join(
            JoinType::InnerJoin,
            "target",
            sql("l.queue = target.queue and l.group_id = target.group_id"),
        )
        .and_where(sql("l.id > ?1 and l.attempts > 0"))
        .to_owned();
    with(
        [cte("target", target), cte("written", written), unhalt_halted_by(names)],
        report(names, sub(later)),
    )
}

/// Gives a queued job up, or unhalts the group that the failed job halted.
fn skip(names: &Names) -> String {
    let written = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("history", sql(format!(
                "case when j.status = 'queued' then {} else j.history end",
                history_entry("j", "'skipped'", "null")
            ))),
            ("error", sql("case when j.status = 'queued' then jsonb_build_object('kind', 'skipped', \
                'message', 'given up by request', 'chain', '[]'::jsonb, 'attempt', j.attempts) else j.error end")),
            ("flagged", sql("j.group_id is not null")),
            ("finished_at", sql("coalesce(j.finished_at, clock_timestamp())")),
            ("status", sql("'failed'")),
        ])
        .from("target")
        .and_where(sql("j.id = ?1 and j.id = target.id"))
        .returning(Query::returning().columns([("j", "id"), ("j", "queue"), ("j", "group_id")]))
        .to_owned();
    with(
        [
            cte("target", target(names, "'queued', 'failed'")),
            cte("written", written),
            unhalt_halted_by(names),
        ],
        report(names, sql("0::int8")),
    )
}

/// Unhalts the group that the written job had halted. No handler holds a halted group's row.
pub(in crate::store) fn unhalt_halted_by(names: &Names) -> sea_query::CommonTableExpression {
    let update = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .values(unhalted())
        .from("written")
        .and_where(sql("g.queue = written.queue and g.group_id = written.group_id"))
        .and_where(sql(
            "g.halt_job_id = written.id and g.halted_at is not null and g.park_to is null",
        ))
        .to_owned();
    cte("unhalted", update)
}

fn unhalt_group(names: &Names) -> String {
    let query = UpdateStatement::new()
        .table(names.queue_group())
        .values(unhalted())
        .and_where(sql(
            "queue = ?1 and group_id = ?2 and halted_at is not null and park_to is null",
        ))
        .to_owned();
    render(query.build(PG))
}

impl Store {
    pub(crate) async fn cancel(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<RequestReport, sqlx::Error> {
        self.request(&CANCEL, executor, job).await
    }

    pub(crate) async fn retry(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<RequestReport, sqlx::Error> {
        self.request(&RETRY, executor, job).await
    }

    pub(crate) async fn skip(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<RequestReport, sqlx::Error> {
        self.request(&SKIP, executor, job).await
    }

    /// Ends the group's halt; returns whether it was halted.
    pub(crate) async fn unhalt_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<bool, sqlx::Error> {
        let unhalt = self.query(&UNHALT_GROUP).bind(queue).bind(group).execute(executor).await?;
        Ok(unhalt.rows_affected() > 0)
    }

    async fn request(
        &self,
        statement: &'static Statement,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<RequestReport, sqlx::Error> {
        let row = self.query(statement).bind(job).fetch_one(executor).await?;
        let status: Option<String> = row.try_get("status")?;
        let overtaken: i64 = row.try_get("overtaken")?;
        Ok(RequestReport {
            status: status.as_deref().and_then(JobStatus::parse),
            done: row.try_get("done")?,
            overtaken: overtaken.unsigned_abs(),
            parked: row.try_get::<Option<bool>, _>("parked")?.unwrap_or_default(),
        })
    }
}

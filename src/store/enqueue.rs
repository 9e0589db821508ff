//! Producers only insert.

use sea_query::{Expr, InsertStatement, Order, SelectStatement};
use sqlx::{PgExecutor, Row};

use super::Store;
use super::template::{Names, Template, cte, rows_of, select, select_into, sql, with};
use crate::job::{CheckedJob, Enqueued};

#[derive(Debug)]
pub(super) struct Statements {
    with_notify: Template,
    without_notify: Template,
}

impl Statements {
    pub(super) fn new(names: &Names) -> Self {
        Self { with_notify: insert(names, true), without_notify: insert(names, false) }
    }
}

/// One INSERT for any number of jobs; the first of each group is flagged.
///
/// Locks nothing but its own rows, looks nothing up that it could wait for, and cannot conflict (P5). The wake-up is a
/// hint: sent once per queue, and only for a queue in which an unlocked look shows an idle group (at SERIALIZABLE:
/// always).
fn insert(names: &Names, notify: bool) -> Template {
    let input = rows_of(&[
        (1, "queue"),
        (2, "group_id"),
        (3, "data"),
        (4, "delay"),
        (5, "run_at"),
        (6, "max_attempts"),
        (7, "timeout_ms"),
    ])
    .expr_as(sql("generate_subscripts(?1, 1)"), "place")
    .to_owned();
    let rows = select()
        .exprs([
            sql("queue"),
            sql("group_id"),
            sql("data::jsonb"),
            sql("coalesce(run_at, clock_timestamp() + make_interval(secs => delay), now())"),
            sql("max_attempts"),
            sql("timeout_ms"),
            sql("group_id is not null and row_number() over (partition by queue, group_id order by place) = 1"),
        ])
        // A job without a group stands in line by its time.
        .expr(sql("coalesce(run_at, clock_timestamp() + make_interval(secs => delay), now())"))
        .from("input")
        .order_by("place", Order::Asc)
        .to_owned();
    let mut inserted = InsertStatement::new();
    inserted
        .into_table(names.job())
        .columns([
            "queue",
            "group_id",
            "data",
            "run_at",
            "max_attempts",
            "timeout_ms",
            "flagged",
            "turn_at",
        ])
        .returning(sea_query::Query::returning().columns(["id", "queue", "group_id", "run_at"]));
    select_into(&mut inserted, rows);
    let mut ids = select();
    ids.column("id").from("inserted").order_by("id", Order::Asc);
    if !notify {
        return with([cte("input", input), cte("inserted", inserted)], ids);
    }
    let woken =
        select().expr_as(sql("count(pg_notify(?8, queue))"), "woken").from("idle").to_owned();
    let mut ids = select();
    ids.column("id")
        .from("inserted")
        // Named, so that it runs; its value is of no use.
        .expr_as(Expr::SubQuery(None, Box::new(woken.into())), "woken")
        .order_by("id", Order::Asc);
    with(
        [
            cte("input", input),
            cte("inserted", inserted),
            cte("due", due()),
            cte("idle", idle(names)),
        ],
        ids,
    )
}

/// The groups of the inserted jobs that are due, each once: a subquery would be looked into once per job.
fn due() -> SelectStatement {
    select()
        .distinct()
        .columns(["queue", "group_id"])
        .from("inserted")
        .and_where(sql("run_at <= clock_timestamp()"))
        .to_owned()
}

/// The queues of those that look idle: a hint. See `looks_idle` in the migrations.
fn idle(names: &Names) -> SelectStatement {
    let looks_idle = names.quoted("looks_idle");
    select()
        .distinct()
        .column("queue")
        .from("due")
        .and_where(sql(format!("{looks_idle}(queue, group_id)")))
        .to_owned()
}

impl Store {
    /// Inserts `jobs` in one statement; the ids come back in input order.
    pub(crate) async fn insert_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: Vec<CheckedJob>,
        notify: bool,
    ) -> Result<Vec<Enqueued>, sqlx::Error> {
        let mut queues = Vec::with_capacity(jobs.len());
        let mut groups = Vec::with_capacity(jobs.len());
        let mut data = Vec::with_capacity(jobs.len());
        let mut delays = Vec::with_capacity(jobs.len());
        let mut run_ats = Vec::with_capacity(jobs.len());
        let mut max_attempts = Vec::with_capacity(jobs.len());
        let mut timeouts = Vec::with_capacity(jobs.len());
        for job in jobs {
            queues.push(job.queue);
            groups.push(job.group);
            data.push(job.data);
            delays.push(job.delay.map(|delay| delay.as_secs_f64()));
            run_ats.push(job.run_at);
            max_attempts.push(job.max_attempts);
            timeouts.push(job.timeout_ms);
        }
        let template =
            if notify { &self.enqueue.with_notify } else { &self.enqueue.without_notify };
        let mut query = template
            .query()
            .bind(queues)
            .bind(groups)
            .bind(data)
            .bind(delays)
            .bind(run_ats)
            .bind(max_attempts)
            .bind(timeouts);
        if notify {
            query = query.bind(self.names.channel());
        }
        let rows = query.fetch_all(executor).await?;
        rows.iter().map(|row| Ok(Enqueued { id: row.try_get(0)? })).collect()
    }
}

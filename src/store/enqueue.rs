//! Producers only insert.

use std::mem::take;

use sea_query::{Expr, InsertStatement, JoinType, OnConflict, Order, SelectStatement};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgExecutor, Postgres, Row};

use super::Store;
use super::claim::HEAD_START;
use super::template::{Names, Template, cte, rows_of, select, select_into, sql, with};
use crate::bytes::JobData;
use crate::job::Enqueued;
use crate::new_job::CheckedJob;
use crate::queue_settings::QueueSettings;

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
/// Locks nothing but its own rows and, for jobs with a deduplication id only, those of their ids; looks nothing else up
/// that it could wait for, and cannot conflict (P5). The wake-up is a hint: sent once per queue, and only for a queue
/// in which an unlocked look shows an idle group (at SERIALIZABLE: always).
fn insert(names: &Names, notify: bool) -> Template {
    let mut inserted = InsertStatement::new();
    inserted
        .into_table(names.job())
        .columns(COLUMNS.map(|(column, _)| column).into_iter().chain(["flagged", "turn_at"]))
        .returning(sea_query::Query::returning().columns(["queue", "group_id", "run_at"]));
    select_into(&mut inserted, rows());
    let mut answer = select();
    answer.column("id").column("first").from("verdict").order_by("place", Order::Asc);
    let mut ctes = vec![
        cte("entry", entry(names)),
        cte("claimed", claim_ids(names)),
        cte("verdict", verdict()),
        cte("inserted", inserted),
    ];
    if notify {
        let woken =
            select().expr_as(sql("count(pg_notify(?18, queue))"), "woken").from("idle").to_owned();
        // Named, so that it runs; its value is of no use.
        answer.expr_as(Expr::SubQuery(None, Box::new(woken.into())), "woken");
        ctes.extend([cte("due", due()), cte("idle", idle(names))]);
    }
    with(ctes, answer)
}

/// The jobs as they were given, each with an id: those of duplicates are lost.
fn input(names: &Names) -> SelectStatement {
    rows_of(&[
        (1, "queue"),
        (2, "group_id"),
        (3, "data"),
        (4, "payload"),
        (5, "content_type"),
        (6, "delay"),
        (7, "run_at"),
        (8, "max_attempts"),
        (9, "timeout_ms"),
        (10, "name"),
        (11, "reference"),
        (12, "priority"),
        (13, "expires_at"),
        (14, "time_to_live"),
        (15, "lease_ms"),
        (16, "dedup_id"),
        (17, "by_content"),
    ])
    .expr_as(sql("generate_subscripts(?1, 1)"), "place")
    .expr_as(sql(names.next_id()), "id")
    .to_owned()
}

/// The jobs by their queue's settings, which are read without a lock.
fn entry(names: &Names) -> SelectStatement {
    let delay = "coalesce(i.delay, q.delay_ms / 1000.0)";
    let content =
        "encode(sha256(coalesce(i.payload, convert_to(i.data::jsonb::text, 'UTF8'))), 'hex')";
    let key = format!(
        "coalesce(i.dedup_id, case when i.by_content or q.dedup_by_content then {content} end)"
    );
    let window = QueueSettings::DEDUP_WINDOW.as_secs();
    select()
        .exprs(
            [
                "i.id",
                "i.place",
                "i.queue",
                "i.group_id",
                "i.data",
                "i.payload",
                "i.content_type",
                "i.max_attempts",
                "i.timeout_ms",
                "i.name",
                "i.reference",
                "coalesce(i.priority, 0::int2) priority",
                "i.lease_ms",
            ]
            .map(sql),
        )
        .expr_as(
            sql(format!(
                "coalesce(i.run_at, clock_timestamp() + make_interval(secs => {delay}), now())"
            )),
            "run_at",
        )
        .expr_as(
            sql(
                "coalesce(i.expires_at, clock_timestamp() + make_interval(secs => i.time_to_live))",
            ),
            "expires_at",
        )
        .expr_as(sql(key), "dedup_id")
        // Hashed: with the longest queue and id, the longest group would not fit an index entry.
        .expr_as(
            sql("case when q.dedup_scope = 'group' and i.group_id is not null \
                 then encode(sha256(convert_to(i.group_id, 'UTF8')), 'hex') else '' end"),
            "scope",
        )
        .expr_as(sql(format!("coalesce(q.dedup_window_ms / 1000.0, {window})")), "dedup_window")
        .from_subquery(input(names), "i")
        .join_as(JoinType::LeftJoin, names.queue(), "q", sql("q.name = i.queue"))
        .to_owned()
}

/// Gives each deduplication id that is new, or whose window is over, to the first job of the statement that has it;
/// waits for other open transactions with the same id, and for nobody else.
///
/// In the order of the ids, so that two statements do not wait for each other. The window is judged by one instant, or
/// a row could keep its job and get a new window.
fn claim_ids(names: &Names) -> InsertStatement {
    let first = select()
        .distinct_on(["queue", "scope", "dedup_id"])
        .columns(["queue", "scope", "dedup_id", "id"])
        .expr(sql("clock_timestamp() + make_interval(secs => dedup_window)"))
        .from("entry")
        .and_where(sql("dedup_id is not null"))
        .order_by("queue", Order::Asc)
        .order_by("scope", Order::Asc)
        .order_by("dedup_id", Order::Asc)
        .order_by("place", Order::Asc)
        .to_owned();
    let over = |column: &str| {
        sql(format!(
            "case when dedup.expires_at <= statement_timestamp() then excluded.{column} else dedup.{column} end"
        ))
    };
    let mut claimed = InsertStatement::new();
    claimed
        .into_table(names.dedup())
        .columns(["queue", "scope", "dedup_id", "job_id", "expires_at"])
        .on_conflict(
            OnConflict::columns(["queue", "scope", "dedup_id"])
                .value("job_id", over("job_id"))
                .value("expires_at", over("expires_at"))
                .to_owned(),
        )
        .returning(sea_query::Query::returning().columns(["queue", "scope", "dedup_id", "job_id"]));
    select_into(&mut claimed, first);
    claimed
}

/// `first`: whose id it is, the job's own if it has none or is the first.
fn verdict() -> SelectStatement {
    select()
        .expr(sql("e.*"))
        .expr_as(sql("coalesce(c.job_id, e.id)"), "first")
        .from_as("entry", "e")
        .join_as(
            JoinType::LeftJoin,
            "claimed",
            "c",
            sql("c.queue = e.queue and c.scope = e.scope and c.dedup_id = e.dedup_id"),
        )
        .to_owned()
}

/// What is inserted, and from what.
const COLUMNS: [(&str, &str); 15] = [
    ("id", "id"),
    ("queue", "queue"),
    ("group_id", "group_id"),
    ("data", "data::jsonb"),
    ("payload", "payload"),
    ("content_type", "content_type"),
    ("run_at", "run_at"),
    ("max_attempts", "max_attempts"),
    ("timeout_ms", "timeout_ms"),
    ("name", "name"),
    ("reference", "reference"),
    ("priority", "priority"),
    ("expires_at", "expires_at"),
    ("lease_ms", "lease_ms"),
    ("dedup_id", "dedup_id"),
];

fn rows() -> SelectStatement {
    let step = HEAD_START.as_secs();
    select()
        .exprs(COLUMNS.map(|(_, value)| sql(value)))
        .expr(sql(
            "group_id is not null and row_number() over (partition by queue, group_id order by place) = 1",
        ))
        // The place in line of a job without a group. One that is not due yet gets its head start when it is.
        .expr(sql(format!(
            "case when run_at <= clock_timestamp() then run_at - priority * interval '{step} s' \
             else least(run_at, expires_at) end"
        )))
        .from("verdict")
        .and_where(sql("first = id"))
        .order_by("place", Order::Asc)
        .to_owned()
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

/// One value per job, or none at all where no job has one: `unnest` fills that up with nulls, and most batches use few
/// of the columns.
fn column<T>(
    jobs: &mut [CheckedJob],
    take: impl Fn(&mut CheckedJob) -> Option<T>,
) -> Vec<Option<T>> {
    let column: Vec<Option<T>> = jobs.iter_mut().map(take).collect();
    if column.iter().all(Option::is_none) { Vec::new() } else { column }
}

/// Binds the jobs column by column, in the order of [`input`].
fn bind(template: &Template, mut jobs: Vec<CheckedJob>) -> Query<'static, Postgres, PgArguments> {
    let jobs = &mut jobs[..];
    let queues: Vec<String> = jobs.iter_mut().map(|job| take(&mut job.queue)).collect();
    let mut payloads = Vec::new();
    let mut content_types = Vec::new();
    let data = column(jobs, |job| match &mut job.content {
        JobData::Json(data) => Some(take(data)),
        JobData::Bytes { .. } => None,
    });
    if jobs.iter().any(|job| matches!(job.content, JobData::Bytes { .. })) {
        for job in &mut *jobs {
            let (payload, content_type) = match &mut job.content {
                JobData::Json(_) => (None, None),
                JobData::Bytes { content_type, bytes } => (Some(take(bytes)), content_type.take()),
            };
            payloads.push(payload);
            content_types.push(content_type);
        }
    }
    template
        .query()
        .bind(queues)
        .bind(column(jobs, |job| job.group.take()))
        .bind(data)
        .bind(payloads)
        .bind(content_types)
        .bind(column(jobs, |job| job.delay.map(|delay| delay.as_secs_f64())))
        .bind(column(jobs, |job| job.run_at))
        .bind(column(jobs, |job| job.max_attempts))
        .bind(column(jobs, |job| job.timeout_ms))
        .bind(column(jobs, |job| job.name.take()))
        .bind(column(jobs, |job| job.reference.take()))
        .bind(column(jobs, |job| (job.priority > 0).then_some(job.priority)))
        .bind(column(jobs, |job| job.expires_at))
        .bind(column(jobs, |job| job.time_to_live.map(|time| time.as_secs_f64())))
        .bind(column(jobs, |job| job.lease_ms))
        .bind(column(jobs, |job| job.dedup_id.take()))
        .bind(column(jobs, |job| job.dedup_by_content.then_some(true)))
}

impl Store {
    /// Inserts `jobs` in one statement; the answers come in input order.
    pub(crate) async fn insert_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: Vec<CheckedJob>,
        notify: bool,
    ) -> Result<Vec<Enqueued>, sqlx::Error> {
        let template =
            if notify { &self.enqueue.with_notify } else { &self.enqueue.without_notify };
        let mut query = bind(template, jobs);
        if notify {
            query = query.bind(self.names.channel());
        }
        let rows = query.fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                let (own, first) = (row.try_get::<i64, _>(0)?, row.try_get(1)?);
                Ok(match first {
                    id if id == own => Enqueued::New { id },
                    id => Enqueued::Duplicate { id },
                })
            })
            .collect()
    }
}

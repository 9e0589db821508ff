//! Enqueue: producers only insert (P5).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::slice;

use sea_query::{Expr, InsertStatement, JoinType, Order, SelectStatement};
use sqlx::postgres::{PgArguments, PgDatabaseError};
use sqlx::query::Query;
use sqlx::{PgExecutor, Postgres, Row};
use tracing::Instrument;
use tracing::field::display;

use crate::job::bytes::JobData;
use crate::job::error::EnqueueError;
use crate::job::job::Enqueued;
use crate::job::new_job::{CheckedJob, DATA_MOST, EnqueueSettings, NewJob};
use crate::job::redact::redact_detail;
use crate::job::unique::Unique;
use crate::metrics::enqueueing::Enqueueing;
use crate::store::builder::{cte, select, select_into, sql, sub, with};
use crate::store::fragments::PRIORITY_AGING;
use crate::store::names::Names;
use crate::store::spans::{begin_send, end_send};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    ONE = |names| insert(names, false, false);
    ONE_NOTIFIED = |names| insert(names, false, true);
    MANY = |names| insert(names, true, false);
    MANY_NOTIFIED = |names| insert(names, true, true);
}

/// One INSERT for one job, or for any number; the first of each group is flagged.
///
/// Locks only its own rows, for jobs with a deduplication id or a unique key the rows of these, and
/// jobs that have such a key. Reads nothing else that it could wait for, and cannot conflict (P5).
/// The wake-up is a hint: sent once
/// per queue, if an unlocked read shows an idle group (at SERIALIZABLE: always).
fn insert(names: &Names, many: bool, notify: bool) -> String {
    let mut inserted = InsertStatement::new();
    inserted
        .into_table(names.job())
        .columns(["id"].into_iter().chain(columns()).chain(["flagged", "turn_at"]));
    select_into(&mut inserted, rows(names, many));
    let mut answer = select();
    answer.column("id").column("first").from("entry");
    if many {
        answer.order_by("place", Order::Asc);
    }
    if many && notify {
        inserted.returning(
            sea_query::Query::returning().columns(["queue", "group_id", "flagged", "run_at"]),
        );
        // Named, so that it runs; its value is of no use.
        answer.expr_as(sub(woken(names)), "woken");
    } else if notify {
        inserted.returning(sea_query::Query::returning().expr(woken_by_one(names)));
    }
    with([cte("entry", entry(names, many, notify)), cte("inserted", inserted)], answer)
}

/// Whether a setting is a column of `job`, and of which value.
enum Column {
    /// None: other columns come from it.
    No,
    /// The setting as given.
    Own,
    /// An expression over `i`, the settings as given, and `q`, the queue's row.
    By(&'static str),
}

struct Setting {
    name: &'static str,
    kind: &'static str,
    column: Column,
}

type Bound = Query<'static, Postgres, PgArguments>;

/// Lists a job's settings: name, type, column, and how its value is taken from a job. They are
/// bound in this order.
macro_rules! settings {
    ($($name:ident: $kind:literal, $column:expr, $value:expr;)+) => {
        const SETTINGS: &[Setting] =
            &[$(Setting { name: stringify!($name), kind: $kind, column: $column }),+];

        fn bind_one(query: Bound, mut job: CheckedJob) -> Bound {
            query$(.bind(value(&mut job, $value)))+
        }

        fn bind_many(query: Bound, jobs: &mut [CheckedJob]) -> Bound {
            let leads = first_of_groups(jobs);
            query$(.bind(column(jobs, $value)))+.bind(leads)
        }
    };
}

settings! {
    queue: "text", Column::Own, |job| Some(take(&mut job.queue));
    group_id: "text", Column::Own, |job| job.group.take();
    data: "text", Column::By("i.data::jsonb"), |job| match &mut job.content {
        JobData::Json(data) => Some(take(data)),
        JobData::Bytes { .. } => None,
    };
    payload: "bytea", Column::Own, |job| match &mut job.content {
        JobData::Json(_) => None,
        JobData::Bytes { bytes, .. } => Some(take(bytes)),
    };
    content_type: "text", Column::Own, |job| match &mut job.content {
        JobData::Json(_) => None,
        JobData::Bytes { content_type, .. } => content_type.take(),
    };
    delay: "float8", Column::No, |job| job.delay.map(|delay| delay.as_secs_f64());
    run_at: "timestamptz", Column::By(RUN_AT), |job| job.run_at;
    max_attempts: "int4", Column::Own, |job| job.max_attempts;
    timeout_ms: "int8", Column::Own, |job| job.timeout_ms;
    name: "text", Column::Own, |job| job.name.take();
    reference: "text", Column::Own, |job| job.reference.take();
    priority: "int2", Column::By("coalesce(i.priority, 0::int2)"),
        |job| (job.priority > 0).then_some(job.priority);
    expires_at: "timestamptz", Column::By(EXPIRES_AT), |job| job.expires_at;
    time_to_live: "float8", Column::No, |job| job.time_to_live.map(|time| time.as_secs_f64());
    lease_ms: "int8", Column::Own, |job| job.lease_ms;
    dedup_id: "text", Column::By(DEDUP_ID), |job| job.dedup_id.take();
    by_content: "bool", Column::No, |job| job.dedup_by_content.then_some(true);
    headers: "text", Column::By("i.headers::jsonb"), |job| job.headers.take();
    attributes: "text", Column::By("i.attributes::jsonb"), |job| job.attributes.take();
    limit_key: "text", Column::Own, |job| job.limit_key.take();
    batch_id: "int8", Column::Own, |job| job.batch;
    unique_mode: "text", Column::No, |job| job.unique.as_ref().map(|unique| unique.mode.as_str());
    unique_scope: "text", Column::No, |job| job.unique.as_ref().map(Unique::scope);
    unique_key: "text", Column::Own, |job| job.unique.take().map(|unique| unique.key);
}

const RUN_AT: &str = "coalesce(i.run_at, clock_timestamp() \
    + make_interval(secs => coalesce(i.delay, q.delay_ms / 1000.0)), now())";
const EXPIRES_AT: &str =
    "coalesce(i.expires_at, clock_timestamp() + make_interval(secs => i.time_to_live))";
const DEDUP_ID: &str = "coalesce(i.dedup_id, case when i.unique_key is null \
    and (i.by_content or q.dedup_by_content) \
    then {content_id}(i.data::jsonb, i.payload) end)";

/// The settings as given. Each job has an id, drawn before anything can change the order of the
/// jobs: the ids of duplicates are lost.
fn input(names: &Names, many: bool) -> SelectStatement {
    let mut rows = select();
    for (n, Setting { name, kind, .. }) in (1..).zip(SETTINGS) {
        let argument = if many { format!("unnest(?{n})") } else { format!("?{n}::{kind}") };
        rows.expr_as(sql(argument), *name);
    }
    if many {
        rows.expr_as(sql(format!("unnest(?{})", SETTINGS.len() + 1)), "leads")
            .expr_as(sql("generate_subscripts(?1, 1)"), "place");
    }
    select()
        .expr(sql("r.*"))
        .expr_as(sql(names.next_id()), "id")
        .from_subquery(rows, "r")
        .to_owned()
}

/// The columns, by the settings of the job and of its queue, which are read without a lock.
fn given(names: &Names, many: bool) -> SelectStatement {
    let mut given = select();
    given.exprs(["i.id", "i.unique_mode", "i.unique_scope"].map(sql));
    for Setting { name, column, .. } in SETTINGS {
        match column {
            Column::No => &mut given,
            Column::Own => given.expr(sql(format!("i.{name}"))),
            Column::By(value) => given.expr_as(sql(names.sql(value)), *name),
        };
    }
    given.from_subquery(input(names, many), "i").join_as(
        JoinType::LeftJoin,
        names.queue(),
        "q",
        sql("q.name = i.queue"),
    );
    if many {
        // Jobs with deduplication ids or unique keys come one after the other in an order of their
        // own, so that two statements do not wait for each other's; of jobs with the same id the
        // first one counts.
        let may_repeat = "i.dedup_id is not null or i.by_content or q.dedup_by_content \
            or i.unique_key is not null";
        let key =
            "case when i.unique_mode = 'until_end' then 'end ' else 'start ' end || i.unique_key";
        let in_group = "case when i.unique_key is not null then i.unique_scope = 'group' \
            else q.dedup_scope = 'group' end";
        given
            .exprs(["i.leads", "i.place"].map(sql))
            .order_by_expr(sql(format!("case when {may_repeat} then i.queue end")), Order::Asc)
            .order_by_expr(sql(names.sql(&format!("coalesce({key}, {DEDUP_ID})"))), Order::Asc)
            .order_by_expr(sql(format!("case when {in_group} then i.group_id end")), Order::Asc)
            .order_by_expr(sql("i.place"), Order::Asc);
    }
    given
}

/// `first`: whose id or key it is, the job's own if it has none or is the first with it.
fn entry(names: &Names, many: bool, notify: bool) -> SelectStatement {
    let [claim_dedup_id, claim_unique_key] =
        ["claim_dedup_id", "claim_unique_key"].map(|function| names.quoted(function));
    let first = format!(
        "case when n.dedup_id is not null then {claim_dedup_id}(n.queue, n.group_id, n.dedup_id, n.id) \
         when n.unique_key is not null then {claim_unique_key}(n.queue, n.group_id, n.unique_key, \
           n.unique_mode, n.unique_scope, n.id, {notify}, n.run_at, n.data, n.payload, n.content_type, n.name, \
           n.reference, n.expires_at, n.max_attempts, n.timeout_ms, n.lease_ms, n.headers, n.attributes) \
         else n.id end"
    );
    let given = given(names, many);
    select().expr(sql("n.*")).expr_as(sql(first), "first").from_subquery(given, "n").to_owned()
}

/// The columns of `job` that come from settings.
fn columns() -> impl Iterator<Item = &'static str> {
    let columns = SETTINGS.iter().filter(|setting| !matches!(setting.column, Column::No));
    columns.map(|setting| setting.name)
}

fn rows(names: &Names, many: bool) -> SelectStatement {
    let step = PRIORITY_AGING.as_secs();
    let flagged = if many {
        // As the client says, unless there are duplicates: the first of a group may be one.
        "group_id is not null and case when (select bool_or(first <> id) from entry) \
         then place in (select min(place) from entry where first = id group by queue, group_id) \
         else leads end"
    } else {
        "group_id is not null"
    };
    // A call only for a job that joins a batch.
    let join =
        format!("case when batch_id is not null then {}(batch_id) end", names.quoted("join_batch"));
    select()
        .expr(sql("id"))
        .exprs(columns().map(|name| if name == "batch_id" { sql(join.clone()) } else { sql(name) }))
        .expr(sql(flagged))
        // The turn of a job without a group. One that is not due yet gets its priority's aging
        // later.
        .expr(sql(format!(
            "case when run_at <= clock_timestamp() then run_at - priority * interval '{step} s' \
             else least(run_at, expires_at) end"
        )))
        .from("entry")
        .and_where(sql("first = id"))
        .to_owned()
}

/// Wakes the queues with idle groups: a hint. See the schema's function `seems_idle`.
fn woken(names: &Names) -> SelectStatement {
    let (wake, seems_idle) = (names.quoted("wake"), names.quoted("seems_idle"));
    let mut due = select();
    due.column("queue")
        .expr_as(sql("array_agg(group_id) filter (where group_id is not null)"), "groups")
        .expr_as(sql("bool_or(group_id is null)"), "plain")
        .from("inserted")
        .and_where(sql("run_at <= clock_timestamp()"))
        .and_where(sql("flagged or group_id is null"))
        .group_by_col("queue");
    select()
        .expr(sql(format!("count({wake}(queue))")))
        .from_subquery(due, "due")
        .and_where(sql(format!("{seems_idle}(queue, groups, plain)")))
        .to_owned()
}

/// The same for the row that was inserted. The session's own setting is read first: `seems_idle`, a
/// function with queries of its own, costs more.
fn woken_by_one(names: &Names) -> Expr {
    let [wake, saw_burst, seems_idle] =
        ["wake", "saw_burst", "seems_idle"].map(|function| names.quoted(function));
    sql(format!(
        "case when run_at <= clock_timestamp() and (group_id is null or {saw_burst}(queue) is not true) \
         and {seems_idle}(queue, array[group_id], group_id is null) then {wake}(queue) end"
    ))
}

/// One value per job, or no values if no job has one: `unnest` fills up with nulls, and a typical
/// batch uses few of the columns.
fn column<T>(
    jobs: &mut [CheckedJob],
    take: impl Fn(&mut CheckedJob) -> Option<T>,
) -> Vec<Option<T>> {
    let column: Vec<Option<T>> = jobs.iter_mut().map(take).collect();
    if column.iter().all(Option::is_none) { Vec::new() } else { column }
}

fn value<T>(job: &mut CheckedJob, take: impl Fn(&mut CheckedJob) -> Option<T>) -> Option<T> {
    take(job)
}

/// A job that was left out of a statement, as an earlier one of it has the same unique key.
struct Repeat {
    place: usize,
    /// The place of the earlier job.
    of: usize,
}

/// Leaves out jobs whose unique key an earlier one has: the database's look at that job would come
/// before its insert. The earlier job gets what an enqueue after it would have replaced.
fn fold_repeats(jobs: &mut Vec<CheckedJob>) -> Vec<Repeat> {
    if jobs.len() < 2 || jobs.iter().all(|job| job.unique.is_none()) {
        return Vec::new();
    }
    let (mut repeats, mut kept) = (Vec::new(), Vec::<(usize, CheckedJob)>::new());
    let mut keys = HashMap::<_, usize>::new();
    for (place, job) in take(jobs).into_iter().enumerate() {
        let had = job.key().and_then(|key| match keys.entry(key) {
            Entry::Occupied(had) => Some(*had.get()),
            Entry::Vacant(free) => {
                free.insert(kept.len());
                None
            }
        });
        match had.and_then(|at| kept.get_mut(at)) {
            Some((of, first)) => {
                repeats.push(Repeat { place, of: *of });
                first.replace_with(job);
            }
            None => kept.push((place, job)),
        }
    }
    *jobs = kept.into_iter().map(|(_, job)| job).collect();
    repeats
}

/// Returns whether each job is the first of its group: a window over the batch cost the server
/// more.
fn first_of_groups(jobs: &[CheckedJob]) -> Vec<bool> {
    let mut seen = HashSet::new();
    jobs.iter()
        .map(|job| {
            let group = job.group.as_deref();
            group.is_some_and(|group| seen.insert((job.queue.as_str(), group)))
        })
        .collect()
}

/// By these names of constraints `join_batch` tells why a job cannot join a batch.
pub(crate) const BATCH_SEALED: &str = "batch_sealed";
pub(crate) const BATCH_UNKNOWN: &str = "batch_unknown";

/// Returns why the database refused an enqueue.
pub(crate) fn refused(error: sqlx::Error) -> EnqueueError {
    let database = error.as_database_error();
    let batch = database.and_then(|database| {
        database.try_downcast_ref::<PgDatabaseError>()?.detail()?.parse().ok()
    });
    match (database.and_then(|database| database.constraint()), batch) {
        (Some(BATCH_SEALED), Some(batch)) => EnqueueError::BatchSealed { batch },
        (Some(BATCH_UNKNOWN), Some(batch)) => EnqueueError::NoSuchBatch { batch },
        _ => EnqueueError::Database(redact_detail(error)),
    }
}

/// Checks everything that needs no database. `index` is the job's position in a call for several.
pub(crate) fn check(
    job: NewJob,
    index: Option<usize>,
    settings: &EnqueueSettings,
) -> Result<CheckedJob, EnqueueError> {
    let enqueueing = Enqueueing::new([job.queue()]);
    let checked = job.check(index, settings.data_limit);
    if checked.is_err() {
        enqueueing.record_refused();
    }
    checked
}

/// Checks that a statement can take so many jobs.
pub(crate) fn check_call(jobs: &[CheckedJob]) -> Result<(), EnqueueError> {
    let size = jobs.iter().map(CheckedJob::size).sum();
    if size > DATA_MOST {
        let enqueueing = Enqueueing::new(jobs.iter().map(|job| &*job.queue));
        enqueueing.record_refused();
        return Err(EnqueueError::CallTooLarge { size, limit: DATA_MOST });
    }
    Ok(())
}

impl Store {
    /// Checks and inserts one job.
    pub(crate) async fn enqueue(
        &self,
        executor: impl PgExecutor<'_>,
        mut job: NewJob,
        settings: &EnqueueSettings,
    ) -> Result<Enqueued, EnqueueError> {
        let span = begin_send(slice::from_mut(&mut job), settings, false);
        let inserted = async {
            let job = check(job, None, settings)?;
            let inserted = self.insert_jobs(executor, vec![job], settings.notify).await;
            let mut enqueued = inserted.map_err(refused)?;
            enqueued.pop().ok_or(EnqueueError::Database(sqlx::Error::RowNotFound))
        };
        let enqueued = inserted.instrument(span.clone()).await;
        if let Ok(enqueued) = &enqueued {
            span.record("messaging.message.id", display(enqueued.id()));
        }
        end_send(&span, &enqueued);
        enqueued
    }

    /// Inserts `jobs` in one statement; returns the answers in input order.
    pub(crate) async fn insert_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        mut jobs: Vec<CheckedJob>,
        notify: bool,
    ) -> Result<Vec<Enqueued>, sqlx::Error> {
        let (one, many) = if notify { (&ONE_NOTIFIED, &MANY_NOTIFIED) } else { (&ONE, &MANY) };
        let enqueueing = Enqueueing::new(jobs.iter().map(|job| &*job.queue));
        let repeats = fold_repeats(&mut jobs);
        let query = match (jobs.pop(), jobs.is_empty()) {
            (Some(job), true) => bind_one(self.query(one), job),
            (last, _) => {
                jobs.extend(last);
                bind_many(self.query(many), &mut jobs)
            }
        };
        let rows = query.fetch_all(executor).await?;
        let mut answers = rows
            .iter()
            .map(|row| {
                let (own, first) = (row.try_get::<i64, _>(0)?, row.try_get(1)?);
                Ok(match first {
                    id if id == own => Enqueued::New { id },
                    id => Enqueued::Duplicate { id },
                })
            })
            .collect::<Result<Vec<_>, sqlx::Error>>()?;
        for Repeat { place, of } in repeats {
            let first = answers.get(of).ok_or(sqlx::Error::RowNotFound)?.id();
            answers.insert(place, Enqueued::Duplicate { id: first });
        }
        enqueueing.record(answers.iter().map(|of| matches!(of, Enqueued::Duplicate { .. })));
        Ok(answers)
    }
}

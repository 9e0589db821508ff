//! Jobs, lists and counts, without locks and without scanning history.

use chrono::{DateTime, Utc};
use sea_query::{Order, SelectStatement};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use crate::job::counts::{HaltedGroup, QueueCounts};
use crate::job::failed_filter::{FailedFilter, FailedJob};
use crate::job::job::{AttemptRecord, Failure, Job, JobStatus};
use crate::job::json::Readable;
use crate::job::queue_options::AfterHalt;
use crate::store::builder::{PG, limit, render, select, sql};
use crate::store::fragments::IS_LISTED_DEAD_LETTER;
use crate::store::index_terms::{in_group, in_order, unfinished};
use crate::store::loaded_job::headers;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    JOB = |names| by_id(jobs(names));
    GROUP_JOBS = |names| of_group(jobs(names));
    BY_REFERENCE = |names| of_reference(jobs(names));
    BARE_JOB = |names| by_id(bare_jobs(names));
    BARE_GROUP_JOBS = |names| of_group(bare_jobs(names));
    BARE_BY_REFERENCE = |names| of_reference(bare_jobs(names));
    HALTED = halted;
    COUNTS = |names| names.sql(
        "select c.queued, c.delayed, c.started, c.succeeded, c.failed, c.cancelled, c.parked from {counts}($1) c",
    );
    FAILED = failed;
    STATUS = |names| names.sql("select {job_state}(j.status, j.queue, j.group_id, j.id)::text from {job} j where j.id = $1");
}

/// When the attempt of a job `j` began that its group's row says is running.
const RUNNING_SINCE: &str = "(select c.started_at from {claim_of}(j.queue, j.group_id, j.id) c where j.finished_at is null)";

/// The columns of a job, as `job` reads them.
const COLUMNS: [&str; 33] = [
    "j.id",
    "j.queue",
    "j.group_id",
    "{job_state}(j.status, j.queue, j.group_id, j.id)::text",
    "j.data",
    "j.result",
    "j.error",
    "j.attempts + ({running_since} is not null)::integer",
    "j.max_attempts",
    "j.run_at",
    "j.created_at",
    "coalesce({running_since}, j.last_started_at)",
    "j.finished_at",
    "j.history",
    "j.payload",
    "j.content_type",
    "j.name",
    "j.reference",
    "j.priority",
    "j.expires_at",
    "j.lease_ms",
    "j.dedup_id",
    "j.headers::text",
    "j.attempts_forgiven",
    "j.moved_from",
    "j.snoozes",
    "(select jsonb_build_object('percent', p.percent, 'message', p.message, 'at', p.reported_at)
        from {job_progress} p where p.job_id = j.id and p.percent is not null and j.status <> 'succeeded')",
    "(select p.checkpoint_at from {job_progress} p where p.job_id = j.id and j.status <> 'succeeded')",
    "j.limit_key",
    "j.batch_id",
    "j.unique_key",
    "j.replaced",
    "j.replaced_at",
];

/// Jobs as they are now: the attempt that runs is the claim's.
pub(crate) fn jobs(names: &Names) -> SelectStatement {
    with_claims(names, &COLUMNS)
}

fn with_claims(names: &Names, columns: &[&str]) -> SelectStatement {
    let since = names.sql(RUNNING_SINCE);
    let column = |column: &&str| sql(names.sql_with(column, &[("running_since", &since)]));
    select().exprs(columns.iter().map(column)).from_as(names.job(), "j").to_owned()
}

/// Jobs without what they carry. It takes no right to those columns.
pub(crate) fn bare_jobs(names: &Names) -> SelectStatement {
    let columns = COLUMNS.map(|column| match column {
        "j.data" | "j.result" => "null::jsonb",
        "j.payload" => "null::bytea",
        "j.headers::text" => "null::text",
        column => column,
    });
    with_claims(names, &columns)
}

fn by_id(mut jobs: SelectStatement) -> String {
    let query = jobs.and_where(sql("j.id = ?1")).to_owned();
    render(query.build(PG))
}

fn of_group(mut jobs: SelectStatement) -> String {
    let mut query = jobs
        .and_where(in_group("j", "?1", "?2", None))
        .and_where(unfinished("j"))
        .limit(limit(3))
        .to_owned();
    in_order(&mut query, "j", &Order::Asc);
    render(query.build(PG))
}

fn of_reference(mut jobs: SelectStatement) -> String {
    let query = jobs
        .and_where(sql("j.queue = ?1 and j.reference = ?2"))
        // As a sum, so that no plan walks all jobs in the order of their ids to find these.
        .order_by_expr(sql("j.id + 0"), Order::Desc)
        .limit(limit(3))
        .to_owned();
    render(query.build(PG))
}

fn halted(names: &Names) -> String {
    let query = select()
        .columns([
            "queue",
            "group_id",
            "halted_at",
            "halt_reason",
            "halt_job_id",
            "halt_until",
            "halt_then",
        ])
        .expr(sql("extract(epoch from clock_timestamp() - g.halted_at)::float8"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.halted_at is not null and g.park_to is null"))
        .order_by("halted_at", Order::Asc)
        .to_owned();
    render(query.build(PG))
}

/// Dead letters in the order of their ids: those that stayed, by their index, and those that wait
/// in dead-letter queues, of which all are read.
fn failed(names: &Names) -> String {
    let one_of = |queue: &str, failed_at: &str, which: &str, order: &str| {
        format!(
            "(select j.id, {queue} as queue, j.group_id, j.name, j.reference, j.attempts, j.created_at,
                {failed_at} as finished_at, j.error, coalesce(j.parked_with = j.id, false) as parked,
                nullif(j.queue, {queue}) as dead_letter_queue
              from {{job}} j
              where {which} and ($1::text is null or {queue} = $1) and ($2::text is null or j.group_id = $2)
                and ($3::text is null or j.name = $3) and ($4::timestamptz is null or {failed_at} >= $4)
                and ($5::text is null or pg_catalog.strpos(lower(j.error->>'message'), lower($5)) > 0) and j.id > $6
              order by {order} limit $7)"
        )
    };
    let stayed = one_of("j.queue", "j.finished_at", "j.status = 'failed'", "j.id");
    let failed_at = "(j.history->-1->>'finished_at')::timestamptz";
    let waits = one_of("j.moved_from", failed_at, IS_LISTED_DEAD_LETTER, "j.id + 0");
    names.sql(&format!("{stayed} union all {waits} order by id limit $7"))
}

impl Store {
    pub(crate) async fn job(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
        bare: bool,
    ) -> Result<Option<Job>, sqlx::Error> {
        let by_id = if bare { &BARE_JOB } else { &JOB };
        let row = self.query(by_id).bind(id).fetch_optional(executor).await?;
        row.as_ref().map(job).transpose()
    }

    /// Returns the unfinished jobs of a group, in the order in which they will run.
    pub(crate) async fn group_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        limit: i64,
        bare: bool,
    ) -> Result<Vec<Job>, sqlx::Error> {
        let of_group = if bare { &BARE_GROUP_JOBS } else { &GROUP_JOBS };
        let query = self.query(of_group).bind(queue).bind(group).bind(limit);
        query.fetch_all(executor).await?.iter().map(job).collect()
    }

    /// Returns the jobs of a reference, finished ones included, the newest first.
    pub(crate) async fn jobs_by_reference(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        reference: &str,
        limit: i64,
        bare: bool,
    ) -> Result<Vec<Job>, sqlx::Error> {
        let of_reference = if bare { &BARE_BY_REFERENCE } else { &BY_REFERENCE };
        let query = self.query(of_reference).bind(queue).bind(reference).bind(limit);
        query.fetch_all(executor).await?.iter().map(job).collect()
    }

    /// Returns the dead letters that the filter has, in the order of their ids.
    pub(crate) async fn failed_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        filter: &FailedFilter,
    ) -> Result<Vec<FailedJob>, sqlx::Error> {
        let FailedFilter { queue, group, name, since, error, after, limit } = filter;
        let query = self.query(&FAILED).bind(queue).bind(group).bind(name).bind(since);
        let query = query.bind(error).bind(after.unwrap_or(i64::MIN)).bind(i64::from(*limit));
        query.fetch_all(executor).await?.iter().map(failed_job).collect()
    }

    /// Returns the status of a job; `None` if there is no such job.
    pub(crate) async fn job_status(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
    ) -> Result<Option<JobStatus>, sqlx::Error> {
        let row = self.query(&STATUS).bind(id).fetch_optional(executor).await?;
        row.map(|row| status(row.try_get(0)?)).transpose()
    }

    pub(crate) async fn halted_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<HaltedGroup>, sqlx::Error> {
        let rows = self.query(&HALTED).bind(queue).fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                let age: f64 = row.try_get(7)?;
                Ok(HaltedGroup {
                    queue: row.try_get(0)?,
                    group: row.try_get(1)?,
                    since: row.try_get(2)?,
                    reason: row.try_get(3)?,
                    job: row.try_get(4)?,
                    until: row.try_get(5)?,
                    then: row.try_get::<Option<&str>, _>(6)?.and_then(AfterHalt::parse),
                    age: std::time::Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default(),
                })
            })
            .collect()
    }

    pub(crate) async fn counts(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<QueueCounts, sqlx::Error> {
        let row = self.query(&COUNTS).bind(queue).fetch_one(executor).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok(QueueCounts {
            queued: count(0)?,
            delayed: count(1)?,
            started: count(2)?,
            succeeded: count(3)?,
            failed: count(4)?,
            cancelled: count(5)?,
            parked: count(6)?,
        })
    }
}

fn failed_job(row: &PgRow) -> Result<FailedJob, sqlx::Error> {
    Ok(FailedJob {
        id: row.try_get(0)?,
        queue: row.try_get(1)?,
        group: row.try_get(2)?,
        name: row.try_get(3)?,
        reference: row.try_get(4)?,
        attempts: u32::try_from(row.try_get::<i32, _>(5)?).unwrap_or(0),
        created_at: row.try_get(6)?,
        finished_at: row.try_get(7)?,
        error: row.try_get::<Option<Json<Failure>>, _>(8)?.map(|json| json.0),
        parked: row.try_get(9)?,
        dead_letter_queue: row.try_get(10)?,
    })
}

fn status(word: &str) -> Result<JobStatus, sqlx::Error> {
    JobStatus::parse(word)
        .ok_or_else(|| sqlx::Error::Decode(format!("unknown job status {word:?}").into()))
}

pub(crate) fn job(row: &PgRow) -> Result<Job, sqlx::Error> {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let finished_at: Option<DateTime<Utc>> = row.try_get(12)?;
    let data = row.try_get::<Option<Readable>, _>(4)?.unwrap_or_else(Readable::null);
    let result = row.try_get::<Option<Readable>, _>(5)?;
    let (result, result_text) = result.map(|json| (json.value, json.text)).unzip();
    Ok(Job {
        id: row.try_get(0)?,
        queue: row.try_get(1)?,
        group: row.try_get(2)?,
        limit_key: row.try_get(28)?,
        status: status(row.try_get(3)?)?,
        data: data.value,
        data_text: data.text,
        payload: row.try_get(14)?,
        content_type: row.try_get(15)?,
        name: row.try_get(16)?,
        reference: row.try_get(17)?,
        priority: u8::try_from(row.try_get::<i16, _>(18)?).unwrap_or(0),
        expires_at: row.try_get(19)?,
        lease: row
            .try_get::<Option<i64>, _>(20)?
            .map(|ms| std::time::Duration::from_millis(ms.unsigned_abs())),
        dedup_id: row.try_get(21)?,
        headers: headers(row, 22)?,
        result,
        result_text,
        error: row.try_get::<Option<Json<Failure>>, _>(6)?.map(|json| json.0),
        attempts: count(row.try_get(7)?),
        attempts_forgiven: count(row.try_get(23)?),
        moved_from: row.try_get(24)?,
        snoozes: u32::try_from(row.try_get::<i16, _>(25)?).unwrap_or(0),
        progress: row.try_get::<Option<Json<_>>, _>(26)?.map(|progress| progress.0),
        checkpoint_at: row.try_get(27)?,
        batch: row.try_get(29)?,
        unique_key: row.try_get(30)?,
        replaced: count(row.try_get(31)?),
        replaced_at: row.try_get(32)?,
        max_attempts: row.try_get::<Option<i32>, _>(8)?.map(count),
        run_at: row.try_get(9)?,
        created_at: row.try_get(10)?,
        last_started_at: row.try_get(11)?,
        finished_at,
        history: row.try_get::<Json<Vec<AttemptRecord>>, _>(13)?.0,
    })
}

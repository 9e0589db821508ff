//! The statements that the library does not have. They only read, and each has a bound.

use chrono::{DateTime, Utc};
use serde::Serialize;
use seriatim::JobStatus;
use seriatim::explain::AttemptInfo;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};

use crate::args::JobList;
use crate::failure::Failure;
use crate::session::Session;

/// How many jobs a list looks at, from the newest on.
const LOOK_AT: i64 = 100_000;

/// A job in a list: nothing that it carries.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct JobLine {
    pub(crate) id: i64,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    pub(crate) status: JobStatus,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) attempts: u32,
    pub(crate) attempts_forgiven: u32,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) last_started_at: Option<DateTime<Utc>>,
    pub(crate) finished_at: Option<DateTime<Utc>>,
    pub(crate) error: Option<seriatim::Failure>,
    pub(crate) progress: Option<seriatim::Progress>,
}

impl JobLine {
    /// Returns its last attempt, and its limit.
    pub(crate) fn attempt(&self) -> AttemptInfo {
        AttemptInfo::new(self.attempts, self.attempts_forgiven, self.max_attempts)
    }
}

/// The columns of a [`JobLine`].
const COLUMNS: &str = "j.id, j.queue, j.group_id, j.status::text as status, j.name, j.reference, \
     j.attempts, j.attempts_forgiven, j.max_attempts, j.created_at, j.run_at, j.last_started_at, \
     j.finished_at, j.error, j.progress";

impl FromRow<'_, PgRow> for JobLine {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let status: String = row.try_get("status")?;
        let number = |column| -> Result<_, sqlx::Error> {
            Ok(row.try_get::<Option<i32>, _>(column)?.map(i32::unsigned_abs))
        };
        let error: Option<Json<_>> = row.try_get("error")?;
        Ok(Self {
            id: row.try_get("id")?,
            queue: row.try_get("queue")?,
            group: row.try_get("group_id")?,
            status: serde_json::from_value(status.into())
                .map_err(|error| sqlx::Error::Decode(error.into()))?,
            name: row.try_get("name")?,
            reference: row.try_get("reference")?,
            attempts: number("attempts")?.unwrap_or_default(),
            attempts_forgiven: number("attempts_forgiven")?.unwrap_or_default(),
            max_attempts: number("max_attempts")?,
            created_at: row.try_get("created_at")?,
            run_at: row.try_get("run_at")?,
            last_started_at: row.try_get("last_started_at")?,
            finished_at: row.try_get("finished_at")?,
            error: error.map(|error| error.0),
            progress: row.try_get::<Option<Json<_>>, _>("progress")?.map(|progress| progress.0),
        })
    }
}

/// Jobs of a list, and where the next page begins.
pub(crate) struct JobPage {
    pub(crate) jobs: Vec<JobLine>,
    /// For `--before`; `None`: there is no older job.
    pub(crate) next: Option<i64>,
}

impl Session {
    /// Returns the quoted name of a table of the schema.
    pub(crate) fn table(&self, name: &str) -> String {
        format!("\"{}\".\"{name}\"", self.client.schema().replace('"', "\"\""))
    }

    /// Returns what a [`JobLine`] is made of: no more, as an observer may read no more.
    fn raw(&self) -> String {
        let (state, claim) = (self.table("job_state"), self.table("claim_of"));
        let since = format!(
            "(select c.started_at from {claim}(j.queue, j.group_id, j.id) c where j.finished_at is null)"
        );
        format!(
            "j.id, j.queue, j.group_id, {state}(j.status, j.queue, j.group_id, j.id) as status, j.name, \
             j.reference, j.attempts + ({since} is not null)::integer as attempts, j.attempts_forgiven, \
             j.max_attempts, j.created_at, j.run_at, coalesce({since}, j.last_started_at) as last_started_at, \
             j.finished_at, j.error, \
             (select jsonb_build_object('percent', p.percent, 'message', p.message, 'at', p.reported_at) \
               from {progress} p where p.job_id = j.id and p.percent is not null and j.finished_at is null) \
               as progress",
            progress = self.table("job_progress")
        )
    }

    /// Returns jobs of a queue, the newest first. It looks at [`LOOK_AT`] jobs of the schema.
    pub(crate) async fn jobs(&self, list: &JobList) -> Result<JobPage, Failure> {
        let JobList { queue, group, status, name, reference, since, before, limit } = list;
        let before = before.unwrap_or(i64::MAX);
        let mut tx = self.read().await?;
        let lowest = self.lowest_looked_at(&mut tx, before).await?;
        let statement = format!(
            "select {COLUMNS} from (
               select {raw} from {job} j
               where j.id < $1 and j.id >= $2 and j.queue = $3
                 and ($4::text is null or j.group_id = $4) and ($6::text is null or j.name = $6)
                 and ($7::text is null or j.reference = $7)
                 and ($8::timestamptz is null or j.created_at >= $8)) j
             where $5::text is null or j.status::text = $5
             order by j.id desc limit $9",
            raw = self.raw(),
            job = self.table("job")
        );
        let jobs: Vec<JobLine> = sqlx::query_as(AssertSqlSafe(statement))
            .persistent(false)
            .bind(before)
            .bind(lowest.unwrap_or(i64::MIN))
            .bind(queue)
            .bind(group)
            .bind(status.map(JobStatus::as_str))
            .bind(name)
            .bind(reference)
            .bind(since)
            .bind(i64::from(*limit))
            .fetch_all(&mut *tx)
            .await?;
        let is_full = jobs.len() >= usize::try_from(*limit).unwrap_or(usize::MAX);
        let next = if is_full { jobs.last().map(|job| job.id) } else { lowest };
        Ok(JobPage { jobs, next })
    }

    /// Returns the lowest id that a list looks at; `None`: it looks at all. An index has the
    /// answer.
    async fn lowest_looked_at(
        &self,
        conn: &mut PgConnection,
        before: i64,
    ) -> Result<Option<i64>, Failure> {
        let statement = format!(
            "select j.id from {} j where j.id < $1 order by j.id desc limit 1 offset {}",
            self.table("job"),
            LOOK_AT - 1
        );
        let lowest = sqlx::query_scalar(AssertSqlSafe(statement)).persistent(false).bind(before);
        Ok(lowest.fetch_optional(conn).await?)
    }
}

/// The jobs that one look of `seriatim tail` reads.
pub(crate) struct Look {
    pub(crate) jobs: Vec<JobLine>,
    pub(crate) now: DateTime<Utc>,
}

impl Session {
    /// Returns the running jobs of a queue, the jobs that ended since `from` (up to 1,000 of each
    /// sort), and the `watched` jobs. In a turn of several jobs only the first unfinished one
    /// counts as running.
    pub(crate) async fn look(
        &self,
        queue: &str,
        group: Option<&str>,
        from: DateTime<Utc>,
        watched: &[i64],
    ) -> Result<Look, Failure> {
        let raw = self.raw();
        let statement = format!(
            "with running as (
               select {raw} from {queue_group} g
               join {job} j on j.id = (select min(u.id) from {unfinished}(g.job_id, g.batch) u)
               where g.queue = $1 and g.job_id is not null
                 and ($2::text is null or g.group_id = $2) limit 1000),
             ungrouped as (
               select {raw} from {job} j
               where j.queue = $1 and j.group_id is null and j.status = 'started'
                 and $2::text is null limit 1000),
             ended as (
               select {raw} from {job} j
               where j.queue = $1 and j.status in ('succeeded', 'failed', 'cancelled')
                 and j.finished_at > $3 and ($2::text is null or j.group_id = $2)
               order by j.finished_at limit 1000),
             seen as (
               select * from running union all select * from ungrouped union all
               select * from ended union all select {raw} from {job} j where j.id = any($4))
             select clock_timestamp() as now, {COLUMNS} from (select) one left join seen j on true",
            queue_group = self.table("queue_group"),
            unfinished = self.table("unfinished"),
            job = self.table("job")
        );
        let rows = sqlx::query(AssertSqlSafe(statement))
            .persistent(false)
            .bind(queue)
            .bind(group)
            .bind(from);
        let rows = rows.bind(watched).fetch_all(&mut *self.read().await?).await?;
        let now = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("now")?;
        let some = rows
            .iter()
            .filter(|row| row.try_get::<Option<i64>, _>("id").is_ok_and(|id| id.is_some()));
        let jobs = some.map(JobLine::from_row).collect::<Result<_, _>>()?;
        Ok(Look { jobs, now })
    }
}

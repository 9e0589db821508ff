//! A job as its handler needs it, read by its claim.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{ColumnIndex, PgConnection, Row};

use crate::job::bytes::JobData;
use crate::job::headers::{self, Headers};
use crate::job::waits::WaitsAtClaim;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Data that the claim has left out.
    JOB_DATA = |names| names.sql("select j.data::text, j.payload, j.content_type from {job} j where j.id = $1");
}

/// Which attempt of its job an attempt is, from 1.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttemptNumber {
    pub(crate) of_all: u32,
    /// Only those that count against the limit.
    pub(crate) counted: u32,
}

/// A job as its handler needs it.
#[derive(Debug)]
pub(crate) struct LoadedJob {
    /// `None`: the claim has left it out, and the attempt reads it.
    pub(crate) data: Option<JobData>,
    pub(crate) content_type: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) priority: u8,
    pub(crate) headers: Headers,
    pub(crate) number: AttemptNumber,
    /// How often it was put off.
    pub(crate) snoozes: u32,
    /// Its own limit; otherwise the limit of its queue's settings.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    /// Its own lease, if it has one.
    pub(crate) lease: Option<Duration>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) run_at: DateTime<Utc>,
    /// A request to cancel is there already.
    pub(crate) cancel_requested: bool,
    /// How long it had waited when it was claimed, and when this process learnt of the claim;
    /// `None` in a rehearsal, which claims nothing.
    pub(crate) waits: Option<(WaitsAtClaim, Instant)>,
}

/// The columns of a [`LoadedJob`], of a row `job` whose next attempt is not counted yet.
pub(crate) fn loaded_columns(names: &Names) -> String {
    names.sql(
        "job.id, job.data::text as data, job.payload, job.content_type,
        job.attempts + 1 as attempts, job.attempts_forgiven, job.snoozes,
        coalesce(job.max_attempts, (select q.max_attempts from {queue} q where q.name = job.queue))
            as max_attempts,
        job.timeout_ms, job.lease_ms, job.created_at, job.run_at, job.name, job.reference, job.priority,
        job.headers::text as headers,
        exists(select 1 from {cancel_request} r where r.job_id = job.id) as cancel_requested",
    )
}

/// The part of a claim's bytes above which a job's data is left out of its answer. The job's
/// attempt reads such data: no other job waits for it, and if it cannot be read, that is a failure
/// of this attempt.
pub(crate) const LARGE: u64 = 16;

/// Whether the data of a row has at most so many bytes. It reads no data that is stored apart.
pub(crate) fn is_small(row: &str, bytes: &str) -> String {
    format!("coalesce(octet_length({row}.payload), pg_column_size({row}.data)) <= {bytes}")
}

impl LoadedJob {
    /// Reads [`loaded_columns`].
    pub(crate) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let time = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let content_type: Option<String> = row.try_get("content_type")?;
        let data = match row.try_get("payload")? {
            Some(bytes) => Some(JobData::Bytes { content_type: content_type.clone(), bytes }),
            None => row.try_get::<Option<_>, _>("data")?.map(JobData::Json),
        };
        let of_all = count(row.try_get("attempts")?);
        let forgiven = count(row.try_get("attempts_forgiven")?);
        Ok(Self {
            data,
            content_type,
            name: row.try_get("name")?,
            reference: row.try_get("reference")?,
            priority: u8::try_from(row.try_get::<i16, _>("priority")?).unwrap_or(0),
            headers: headers(row, "headers")?,
            number: AttemptNumber { of_all, counted: of_all.saturating_sub(forgiven) },
            snoozes: u32::try_from(row.try_get::<i16, _>("snoozes")?).unwrap_or(0),
            max_attempts: row.try_get::<Option<i32>, _>("max_attempts")?.map(count),
            timeout: time(row.try_get("timeout_ms")?),
            lease: time(row.try_get("lease_ms")?),
            created_at: row.try_get("created_at")?,
            run_at: row.try_get("run_at")?,
            cancel_requested: row.try_get("cancel_requested")?,
            waits: None,
        })
    }
}

pub(crate) fn headers(
    row: &PgRow,
    column: impl ColumnIndex<PgRow>,
) -> Result<Headers, sqlx::Error> {
    headers::parse(row.try_get(column)?).map_err(|error| sqlx::Error::Decode(error.into()))
}

impl Store {
    /// Reads the data of a job that the claim has left out. Locks nothing.
    pub(crate) async fn job_data(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<JobData, sqlx::Error> {
        let row = self.query(&JOB_DATA).bind(job).fetch_one(conn).await?;
        Ok(match row.try_get(1)? {
            Some(bytes) => JobData::Bytes { content_type: row.try_get(2)?, bytes },
            None => JobData::Json(row.try_get(0)?),
        })
    }
}

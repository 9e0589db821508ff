//! Batches. The functions of `sql/functions/batch.sql` change and end them.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::job::batch::{Batch, BatchEnd, BatchJob, BatchState, CheckedBatch};
use crate::job::explanation::BoundedCount;
use crate::job::job::JobStatus;
use crate::job::json::Readable;
use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    OPEN = |names| names.sql("select {open_batch}($1, $2, $3, $4::jsonb, $5)");
    SEAL = |names| names.sql("select {seal_batch}($1)");
    ABANDON = |names| names.sql("select {abandon_batch}($1, $2, $3)");
    END = |names| names.sql("select e.batch, e.name, e.state, e.follow_up, e.error from {end_batches}() e");
    DUE = |names| names.sql("select count(*) >= 1000 from (select from {batch_due} limit 1000) d");
    NOTE = |names| names.sql("select {note_batches}($1, $2)");
    FORGET = |names| names.sql("select {forget_batches}($1, $2)");
    LIST = |names| names.sql(
        "select b.id, b.name, b.state, b.starts_when, b.queue, b.group_id, b.opened_at, b.sealed_at, b.ended_at, b.failed_at,
          b.follow_up, b.refused, b.unfinished, b.succeeded, b.unsuccessful
        from {batches}($1, $2, $3, $4) b",
    );
    JOBS = |names| names.sql(
        "select b.job, b.queue, b.group_id, b.status, b.result, b.ended_at, b.error
        from {batch_jobs}($1, $2, $3) b",
    );
    /// The same without results. It takes no right to those columns.
    BARE_JOBS = |names| names.sql(
        "select e.job_id, e.queue, e.group_id, e.status::text, null::jsonb, e.ended_at,
          case when e.status <> 'succeeded' then j.error->>'message' end
        from {batch_end} e left join {job} j on j.id = e.job_id
        where e.batch_id = $1 and ($2::bigint is null or e.job_id > $2)
        order by e.batch_id, e.job_id limit $3",
    );
}

/// Bounds each count of a batch in a list.
const LISTED_COUNT: u64 = 1000;

/// A batch that was looked at, and does not run any more.
#[derive(Debug)]
pub(crate) struct LookedAt {
    pub(crate) batch: i64,
    pub(crate) name: String,
    pub(crate) state: BatchState,
    pub(crate) follow_up: Option<i64>,
    /// Why the follow-up was refused.
    pub(crate) error: Option<String>,
}

impl Store {
    /// Opens a batch; returns its id.
    pub(crate) async fn open_batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: &CheckedBatch,
    ) -> Result<i64, sqlx::Error> {
        let CheckedBatch { name, queue, group, job, starts_when } = batch;
        let open = self.query(&OPEN).bind(name).bind(queue).bind(group).bind(job);
        open.bind(starts_when.as_str()).fetch_one(executor).await?.try_get(0)
    }

    /// Returns whether the batch was open; `None` if there is none.
    ///
    /// Locks its row. Waits for another seal.
    pub(crate) async fn seal_batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
    ) -> Result<Option<bool>, sqlx::Error> {
        self.query(&SEAL).bind(batch).fetch_one(executor).await?.try_get(0)
    }

    /// Returns whether the batch had not ended; `None` if there is none.
    ///
    /// Locks its row. Waits for a process that ends it.
    pub(crate) async fn abandon_batch(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
        acting: Acting<'_>,
    ) -> Result<Option<bool>, sqlx::Error> {
        let abandon = self.query(&ABANDON).bind(batch).bind(acting.reason).bind(acting.actor);
        abandon.fetch_one(executor).await?.try_get(0)
    }

    /// Looks at the batches that something happened to, and ends those whose jobs have ended.
    ///
    /// Locks their rows, and skips those that others have.
    pub(crate) async fn end_batches(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Vec<LookedAt>, sqlx::Error> {
        let rows = self.query(&END).fetch_all(conn).await?;
        rows.iter()
            .map(|row| {
                Ok(LookedAt {
                    batch: row.try_get(0)?,
                    name: row.try_get(1)?,
                    state: BatchState::parse(row.try_get(2)?).ok_or_else(unknown("state"))?,
                    follow_up: row.try_get(3)?,
                    error: row.try_get(4)?,
                })
            })
            .collect()
    }

    /// Returns whether so much happened to batches that one look does not see it all.
    pub(crate) async fn many_batches_are_due(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<bool, sqlx::Error> {
        self.query(&DUE).fetch_one(executor).await?.try_get(0)
    }

    /// Lets sealed batches behind one be looked at. Returns the last, if there may be more.
    pub(crate) async fn note_batches(
        &self,
        conn: &mut PgConnection,
        after: i64,
        batch: i32,
    ) -> Result<Option<i64>, sqlx::Error> {
        self.query(&NOTE).bind(after).bind(batch).fetch_one(conn).await?.try_get(0)
    }

    /// Forgets batches behind one that nobody needs any more. Returns the last that it looked at,
    /// if there may be more.
    pub(crate) async fn forget_batches(
        &self,
        conn: &mut PgConnection,
        after: i64,
        batch: i32,
    ) -> Result<Option<i64>, sqlx::Error> {
        self.query(&FORGET).bind(after).bind(batch).fetch_one(conn).await?.try_get(0)
    }

    /// Returns the batch of an id, or batches before one, the newest first. Locks nothing.
    pub(crate) async fn batches(
        &self,
        executor: impl PgExecutor<'_>,
        batch: Option<i64>,
        before: Option<i64>,
        limit: i32,
        pending: bool,
    ) -> Result<Vec<Batch>, sqlx::Error> {
        let list = self.query(&LIST).bind(batch).bind(before).bind(limit).bind(pending);
        let most = if batch.is_some() { BoundedCount::LIMIT } else { LISTED_COUNT };
        list.fetch_all(executor).await?.iter().map(|row| stored(row, most)).collect()
    }

    /// Returns how jobs of a batch have ended, from behind a job on; with their results, unless it
    /// is `bare`. Locks nothing.
    pub(crate) async fn batch_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        batch: i64,
        after: Option<i64>,
        limit: i32,
        bare: bool,
    ) -> Result<Vec<BatchJob>, sqlx::Error> {
        let jobs =
            self.query(if bare { &BARE_JOBS } else { &JOBS }).bind(batch).bind(after).bind(limit);
        let rows = jobs.fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                let result = row.try_get::<Option<Readable>, _>(4)?;
                let (result, result_text) = result.map(|json| (json.value, json.text)).unzip();
                Ok(BatchJob {
                    job: row.try_get(0)?,
                    queue: row.try_get(1)?,
                    group: row.try_get(2)?,
                    status: JobStatus::parse(row.try_get(3)?).ok_or_else(unknown("status"))?,
                    result,
                    result_text,
                    ended_at: row.try_get(5)?,
                    error: row.try_get(6)?,
                })
            })
            .collect()
    }
}

fn unknown(what: &'static str) -> impl FnOnce() -> sqlx::Error {
    move || sqlx::Error::Decode(format!("unknown {what} of a batch").into())
}

fn stored(row: &PgRow, most: u64) -> Result<Batch, sqlx::Error> {
    let count = |n: usize| {
        row.try_get::<i64, _>(n).map(|count| BoundedCount::up_to(count.unsigned_abs(), most))
    };
    Ok(Batch {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        state: BatchState::parse(row.try_get(2)?).ok_or_else(unknown("state"))?,
        starts_when: BatchEnd::parse(row.try_get(3)?).ok_or_else(unknown("condition"))?,
        queue: row.try_get(4)?,
        group: row.try_get(5)?,
        opened_at: row.try_get(6)?,
        sealed_at: row.try_get(7)?,
        ended_at: row.try_get(8)?,
        failed_at: row.try_get(9)?,
        follow_up: row.try_get(10)?,
        refused: row.try_get(11)?,
        unfinished: count(12)?,
        succeeded: count(13)?,
        unsuccessful: count(14)?,
    })
}

//! The jobs of a turn that its settle finds beside the last: those that succeeded before, and those
//! not begun.

use std::time::Instant;

use sqlx::{PgConnection, Row};

use crate::store::claim::Claim;
use crate::store::settle::keep::KeepFinished;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    RECORD_SUCCESSES = |names| names.sql("select {record_successes}($1, $2, $3, $4, $5, $6, $7, $8)");

    /// Locks the group's row by its token if the claim's job has ended already.
    ALREADY_RECORDED = |names| names.sql(
        "select 1 from {queue_group} g
        where g.claim = $1 and not exists(
            select 1 from {job} j where j.id = $2 and j.finished_at is null
        )
        for no key update of g skip locked",
    );

    /// A number of an attempt comes once (P9).
    SUCCEEDED = |names| names.sql(
        "select 1 from {job} j where j.id = $1 and j.status = 'succeeded' and j.attempts = $2",
    );
}

/// A job of a turn whose handler has returned, and whose success is still to be recorded.
#[derive(Debug, Clone)]
pub(crate) struct UnrecordedSuccess {
    pub(crate) job: i64,
    /// As JSON.
    pub(crate) result: String,
    /// When its handler began in this process.
    pub(crate) began: Option<Instant>,
    /// When it returned; `None`: just now.
    pub(crate) ended: Option<Instant>,
}

/// Returns how many seconds before `now` that was.
pub(crate) fn age(at: Option<Instant>, now: Instant) -> Option<f64> {
    at.map(|at| now.saturating_duration_since(at).as_secs_f64())
}

impl Store {
    /// Returns whether the claim's job was recorded already, and only the answer to the commit was
    /// lost. The group's row is locked then.
    pub(crate) async fn already_recorded(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let already_recorded = self.query(&ALREADY_RECORDED).bind(claim.token).bind(claim.job);
        Ok(already_recorded.fetch_optional(conn).await?.is_some())
    }

    /// Returns whether this attempt of the job has succeeded, and its row is still there.
    pub(crate) async fn has_succeeded(
        &self,
        conn: &mut PgConnection,
        job: i64,
        attempt: u32,
    ) -> Result<bool, sqlx::Error> {
        let succeeded = self.query(&SUCCEEDED).bind(job).bind(i64::from(attempt));
        Ok(succeeded.fetch_optional(conn).await?.is_some())
    }

    /// Records successes of a group's turn, which stays claimed; returns whether the queue or the
    /// group is paused. The group's row is locked by the claim's token.
    pub(crate) async fn record_earlier(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        claim: &Claim,
        done: &[UnrecordedSuccess],
        keep: KeepFinished,
    ) -> Result<bool, sqlx::Error> {
        let jobs: Vec<i64> = done.iter().map(|done| done.job).collect();
        let results: Vec<&str> = done.iter().map(|done| done.result.as_str()).collect();
        let record = self.query(&RECORD_SUCCESSES).bind(queue).bind(&claim.group);
        let now = Instant::now();
        let began: Vec<_> = done.iter().map(|done| age(done.began, now)).collect();
        let ended: Vec<_> = done.iter().map(|done| age(done.ended, now)).collect();
        let record = record.bind(claim.token).bind(jobs).bind(results).bind(began).bind(ended);
        record.bind(keep.succeeded).fetch_one(conn).await?.try_get(0)
    }
}

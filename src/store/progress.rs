//! Progress and checkpoints: rows beside the job's, which the handler's transaction has locked.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::store::literal::{id, literal};
use crate::store::session::short;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    CHECKPOINT = |names| names.sql("select p.checkpoint::text from {job_progress} p where p.job_id = $1");
    FORGET_PROGRESS = |names| names.sql("select {forget_progress}($1)");
    FORGET_LEFT = |names| names.sql("select {forget_left_progress}($1, $2)");
}

/// The values of a handler that are to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The percentage, and the message.
    pub(crate) progress: Option<(u8, String)>,
    /// A checkpoint as JSON.
    pub(crate) checkpoint: Option<Arc<str>>,
}

impl Store {
    /// Writes what a worker's claim reports, in a transaction of its own. Returns false, and has
    /// written nothing, if the claim is lost or suspected (P10).
    ///
    /// One message: from the look at the claim to the commit it takes no answer of this process,
    /// which may be frozen for longer than a take-over takes.
    ///
    /// Locks the row of the progress, and waits for another writer of it. Reads the rows of the
    /// claim.
    pub(crate) async fn write_progress(
        &self,
        conn: &mut PgConnection,
        job: i64,
        token: Uuid,
        report: &Report,
    ) -> Result<bool, sqlx::Error> {
        let null = || "null".to_owned();
        let (percent, message) = match &report.progress {
            Some((percent, message)) => (percent.to_string(), literal(message)),
            None => (null(), null()),
        };
        let checkpoint = report.checkpoint.as_deref().map_or_else(null, literal);
        let text = format!(
            "{}; select {}({}, '{token}', {percent}, {message}, {checkpoint}::jsonb); commit",
            short(conn),
            self.names.quoted("write_progress"),
            id(Some(job)),
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
    }

    /// Returns the checkpoint of a job, as JSON. Locks nothing.
    pub(crate) async fn checkpoint(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Option<String>, sqlx::Error> {
        let row = self.query(&CHECKPOINT).bind(job).fetch_optional(conn).await?;
        row.map_or(Ok(None), |row| row.try_get(0))
    }

    /// Deletes the rows of those of these jobs that cannot run again. Skips locked rows.
    pub(crate) async fn forget_progress(
        &self,
        conn: &mut PgConnection,
        jobs: Vec<i64>,
    ) -> Result<(), sqlx::Error> {
        self.query(&FORGET_PROGRESS).bind(jobs).execute(conn).await.map(drop)
    }

    /// The same for `batch` jobs behind an id. Returns the last that it looked at; `None`: there is
    /// no other.
    pub(crate) async fn forget_left_progress(
        &self,
        conn: &mut PgConnection,
        after: i64,
        batch: i64,
    ) -> Result<Option<i64>, sqlx::Error> {
        self.query(&FORGET_LEFT).bind(after).bind(batch).fetch_one(conn).await?.try_get(0)
    }
}

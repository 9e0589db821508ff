//! Messages: the jobs of queues, and the errors of their receivers.

use std::collections::HashMap;

use seriatim::receive::{Receipt, ReceiveError, Received};
use sqlx::{PgConnection, PgPool, Row};

use crate::database::database::Database;
use crate::error::{Code, SqsError};

impl Database {
    /// Returns when jobs were enqueued, as far as they are there still.
    pub(crate) async fn created(
        &self,
        conn: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<HashMap<i64, i64>, sqlx::Error> {
        let sql = self.sql(
            "select j.id, (extract(epoch from j.created_at) * 1000000)::int8
             from {schema}.job j where j.id = any ($1)",
        );
        let rows = sqlx::query(sql).bind(jobs).fetch_all(conn).await?;
        let pairs = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        pairs.collect()
    }

    /// Releases messages that were received for a client that is gone.
    pub(crate) async fn release(&self, pool: &PgPool, unseen: &[Received]) -> Result<(), SqsError> {
        if unseen.is_empty() {
            return Ok(());
        }
        let receipts: Vec<String> = unseen.iter().map(|job| job.receipt.to_string()).collect();
        let sql = self.sql("select from {schema}.release_many($1)");
        sqlx::query(sql).bind(receipts).execute(pool).await?;
        Ok(())
    }

    /// Returns which of these queues may have a message now.
    pub(crate) async fn due_queues(&self, queues: &[String]) -> Result<Vec<String>, SqsError> {
        let sql = self.sql("select * from {schema}.due_queues($1)");
        Ok(sqlx::query_scalar(sql).bind(queues).fetch_all(self.pool()).await?)
    }

    /// Returns which of these jobs have not ended.
    pub(crate) async fn unfinished(
        &self,
        pool: &PgPool,
        jobs: &[i64],
    ) -> Result<Vec<i64>, SqsError> {
        let sql = self
            .sql("select j.id from {schema}.job j where j.id = any ($1) and j.finished_at is null");
        Ok(sqlx::query_scalar(sql).bind(jobs).fetch_all(pool).await?)
    }

    /// Returns which of these jobs of a queue wait; those of a group never.
    pub(crate) async fn waiting(
        &self,
        pool: &PgPool,
        queue: &str,
        jobs: &[i64],
    ) -> Result<Vec<i64>, SqsError> {
        let sql = self.sql(
            "select j.id from {schema}.job j
             where j.id = any ($1) and j.queue = $2 and j.group_id is null and j.status = 'queued'",
        );
        Ok(sqlx::query_scalar(sql).bind(jobs).bind(queue).fetch_all(pool).await?)
    }

    /// Returns the receipts that receivers have of these jobs of a queue, of those without a group.
    pub(crate) async fn receipts(
        &self,
        pool: &PgPool,
        queue: &str,
        jobs: &[i64],
    ) -> Result<HashMap<i64, Receipt>, SqsError> {
        let sql = self.sql(
            "select j.id, j.id || '.' || j.claim from {schema}.job j
             where j.id = any ($1) and j.queue = $2 and j.group_id is null
               and j.finished_at is null and j.claim is not null and j.claimed_by is null",
        );
        let rows: Vec<(i64, String)> =
            sqlx::query_as(sql).bind(jobs).bind(queue).fetch_all(pool).await?;
        Ok(rows.into_iter().filter_map(|(id, text)| Some((id, text.parse().ok()?))).collect())
    }
}

/// Returns whether a call of a receiver has done nothing: the database said so, and did not just go
/// away.
pub(crate) fn is_undone(error: &ReceiveError) -> bool {
    !matches!(error, ReceiveError::Database(error) if error.as_database_error().is_none())
}

/// Returns the SQS error for a receiver's refused call.
pub(crate) fn refusal(error: ReceiveError) -> SqsError {
    match error {
        ReceiveError::Busy { .. } => SqsError::busy(),
        ReceiveError::Database(error) => error.into(),
        other => SqsError::new(Code::InvalidParameterValue, other.to_string()),
    }
}

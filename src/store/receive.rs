//! Receive: the functions of the schema that any language calls, bound.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};

use crate::job::headers::Headers;
use crate::job::json::Readable;
use crate::store::loaded_job::headers;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    RECEIVE = |names| call(names, RECEIVED, "receive", "$1, $2, make_interval(secs => $3), $4, $5, $6, $7");
    ACK = |names| call(names, "*", "ack", "$1, $2::jsonb");
    NACK = |names| call(names, "*", "nack", "$1, make_interval(secs => $2), $3");
    SNOOZE = |names| call(names, "*", "snooze", "$1, make_interval(secs => $2), $3");
    PROGRESS = |names| call(names, "*", "progress", "$1, $2, $3");
    KEEP_CHECKPOINT = |names| call(names, "*", "checkpoint", "$1, $2::jsonb");
    EXTEND = |names| call(names, "*", "extend", "$1, make_interval(secs => $2)");
    ACK_MANY = |names| call(names, "answer", "ack_many", "$1");
    NACK_MANY = |names| call(names, "answer", "nack_many", "$1, make_interval(secs => $2), $3");
    EXTEND_MANY = |names| call(names, "answer", "extend_many", "$1, make_interval(secs => $2)");
}

const RECEIVED: &str = "receipt, id, group_id, attempt, data, payload, content_type, name, reference, \
                        enqueued_at, visible_until, key, headers::text, \
                        attributes, dedup_id, first_received_at, moved_from, checkpoint";

fn call(names: &Names, columns: &str, function: &str, arguments: &str) -> String {
    format!("select {columns} from {}({arguments})", names.quoted(function))
}

/// The arguments of a receive.
#[derive(Debug)]
pub(crate) struct ReceiveArguments<'a> {
    pub(crate) queue: &'a str,
    pub(crate) limit: i32,
    pub(crate) visibility: Duration,
    pub(crate) group: Option<&'a str>,
    pub(crate) attempt_id: Option<&'a str>,
    pub(crate) together: bool,
    pub(crate) requests: i32,
}

/// A row that `receive` returned.
pub(crate) struct ReceivedRow {
    pub(crate) receipt: String,
    pub(crate) id: i64,
    pub(crate) group: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) data: Readable,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) content_type: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) headers: Headers,
    pub(crate) enqueued_at: DateTime<Utc>,
    pub(crate) visible_until: DateTime<Utc>,
    pub(crate) key: String,
    pub(crate) attributes: Option<Value>,
    pub(crate) dedup_id: Option<String>,
    pub(crate) first_received_at: DateTime<Utc>,
    pub(crate) moved_from: Option<String>,
    pub(crate) checkpoint: Option<Readable>,
}

/// The answer to a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiptState {
    Done,
    Stale,
    Busy,
}

impl Store {
    /// Claims jobs for a receiver: locks as a claim does, and commits unless `executor` is in a
    /// transaction.
    pub(crate) async fn receive(
        &self,
        executor: impl PgExecutor<'_>,
        arguments: ReceiveArguments<'_>,
    ) -> Result<Vec<ReceivedRow>, sqlx::Error> {
        let ReceiveArguments { queue, limit, visibility, group, attempt_id, together, requests } =
            arguments;
        let receive =
            self.query(&RECEIVE).bind(queue.to_owned()).bind(limit).bind(visibility.as_secs_f64());
        let receive = receive.bind(group).bind(attempt_id).bind(together).bind(requests);
        let rows = receive.fetch_all(executor).await?;
        rows.iter().map(received_row).collect()
    }

    /// Ends a job as succeeded; `result` is JSON. Locks the group's row, then the job's.
    pub(crate) async fn ack(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        result: Option<&str>,
    ) -> Result<ReceiptState, sqlx::Error> {
        state(&self.query(&ACK).bind(receipt.to_owned()).bind(result).fetch_one(executor).await?)
    }

    /// Gives a job back. Locks the group's row, then the job's.
    pub(crate) async fn nack(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        delay: Option<Duration>,
        error: Option<&str>,
    ) -> Result<ReceiptState, sqlx::Error> {
        let delay = delay.map(|delay| delay.as_secs_f64());
        let nack = self.query(&NACK).bind(receipt.to_owned()).bind(delay).bind(error);
        state(&nack.fetch_one(executor).await?)
    }

    /// Puts a job off. Locks the group's row, then the job's.
    pub(crate) async fn snooze(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        delay: Duration,
        max_snoozes: u32,
    ) -> Result<ReceiptState, sqlx::Error> {
        let most = i32::try_from(max_snoozes).unwrap_or(i32::MAX);
        let snooze = self.query(&SNOOZE).bind(receipt.to_owned()).bind(delay.as_secs_f64());
        state(&snooze.bind(most).fetch_one(executor).await?)
    }

    /// Says how far a job is. Locks the group's row, then the job's.
    pub(crate) async fn report_received(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        percent: u8,
        message: &str,
    ) -> Result<ReceiptState, sqlx::Error> {
        let progress = self.query(&PROGRESS).bind(receipt.to_owned()).bind(i32::from(percent));
        state(&progress.bind(message).fetch_one(executor).await?)
    }

    /// Keeps a checkpoint, as JSON. Locks the group's row, then the job's.
    pub(crate) async fn keep_checkpoint(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        checkpoint: &str,
    ) -> Result<ReceiptState, sqlx::Error> {
        let keep = self.query(&KEEP_CHECKPOINT).bind(receipt.to_owned()).bind(checkpoint);
        state(&keep.fetch_one(executor).await?)
    }

    /// Extends a claim. Locks the group's row, then the job's.
    pub(crate) async fn extend_received(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        visibility: Duration,
    ) -> Result<ReceiptState, sqlx::Error> {
        let extend = self.query(&EXTEND).bind(receipt.to_owned()).bind(visibility.as_secs_f64());
        state(&extend.fetch_one(executor).await?)
    }

    /// [`ack`](Self::ack) for each of the receipts, by group and id.
    pub(crate) async fn ack_many(
        &self,
        executor: impl PgExecutor<'_>,
        receipts: Vec<String>,
    ) -> Result<Vec<ReceiptState>, sqlx::Error> {
        let rows = self.query(&ACK_MANY).bind(receipts).fetch_all(executor).await?;
        rows.iter().map(state).collect()
    }

    /// [`nack`](Self::nack) for each of the receipts, the last of a group first.
    pub(crate) async fn nack_many(
        &self,
        executor: impl PgExecutor<'_>,
        receipts: Vec<String>,
        delay: Option<Duration>,
        error: Option<&str>,
    ) -> Result<Vec<ReceiptState>, sqlx::Error> {
        let delay = delay.map(|delay| delay.as_secs_f64());
        let nack = self.query(&NACK_MANY).bind(receipts).bind(delay).bind(error);
        nack.fetch_all(executor).await?.iter().map(state).collect()
    }

    /// [`extend_received`](Self::extend_received) for each of the receipts, by group and id.
    pub(crate) async fn extend_many(
        &self,
        executor: impl PgExecutor<'_>,
        receipts: Vec<String>,
        visibility: Duration,
    ) -> Result<Vec<ReceiptState>, sqlx::Error> {
        let extend = self.query(&EXTEND_MANY).bind(receipts).bind(visibility.as_secs_f64());
        extend.fetch_all(executor).await?.iter().map(state).collect()
    }
}

fn received_row(row: &PgRow) -> Result<ReceivedRow, sqlx::Error> {
    let attempt: i32 = row.try_get("attempt")?;
    Ok(ReceivedRow {
        receipt: row.try_get("receipt")?,
        id: row.try_get("id")?,
        group: row.try_get("group_id")?,
        attempt: u32::try_from(attempt).unwrap_or(0),
        data: row.try_get::<Option<Readable>, _>("data")?.unwrap_or_else(Readable::null),
        payload: row.try_get("payload")?,
        content_type: row.try_get("content_type")?,
        name: row.try_get("name")?,
        reference: row.try_get("reference")?,
        headers: headers(row, 12)?,
        enqueued_at: row.try_get("enqueued_at")?,
        visible_until: row.try_get("visible_until")?,
        key: row.try_get("key")?,
        attributes: row.try_get::<Option<Readable>, _>("attributes")?.map(|json| json.value),
        dedup_id: row.try_get("dedup_id")?,
        first_received_at: row.try_get("first_received_at")?,
        moved_from: row.try_get("moved_from")?,
        checkpoint: row.try_get("checkpoint")?,
    })
}

fn state(row: &PgRow) -> Result<ReceiptState, sqlx::Error> {
    match row.try_get(0)? {
        "done" => Ok(ReceiptState::Done),
        "stale" => Ok(ReceiptState::Stale),
        "busy" => Ok(ReceiptState::Busy),
        word => Err(sqlx::Error::Protocol(format!("the schema's function returned {word:?}"))),
    }
}

//! Receive: take jobs by hand, without a [`Processor`](crate::Processor). It calls the SQL
//! functions that other languages call.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgExecutor;
use sqlx::postgres::PgDatabaseError;
use tracing::{Instrument, Span};
use uuid::Uuid;

use crate::client::client::Client;
use crate::job::headers;
use crate::job::job_error::storable_text;
use crate::job::json::{has_nul, optional_bytes};
use crate::job::new_job::DATA_LIMIT;
use crate::job::progress::checkpoint_json;
use crate::job::reason::failed_call;
use crate::job::redact::{Redacted, json_error, redact_detail};
use crate::job::until::Until;
use crate::metrics::receives::record_receive;
use crate::store::{
    ReceiptState, ReceiveArguments, ReceivedRow, RestArguments, RestState, begin_ack, begin_nack,
    begin_receive, count, record_failure,
};

/// A request to receive: `Receive::new("queue").max(10)`.
#[derive(Debug, Clone)]
#[must_use = "a Receive does nothing until it is passed to Client::receive"]
pub struct Receive {
    queue: String,
    limit: u32,
    visibility: Duration,
    group: Option<String>,
    attempt_id: Option<String>,
    together: bool,
    requests: u32,
}

impl Receive {
    /// Returns a request for one job of `queue`, for 30 s.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            limit: 1,
            visibility: Duration::from_secs(30),
            group: None,
            attempt_id: None,
            together: false,
            requests: 1,
        }
    }

    /// Limits the number of jobs: 1 to 1000; 1 to 10 of one named [`group`](Self::group). Default
    /// 1. [`Client::receive`] refuses any other number.
    pub fn max(mut self, jobs: u32) -> Self {
        self.limit = jobs;
        self
    }

    /// Sets how long no other receiver or worker gets the jobs, unless they are extended: 0 to 12
    /// hours. Default 30 s. Jobs of one group that are received together have one visibility.
    pub fn visibility(mut self, time: Duration) -> Self {
        self.visibility = time;
        self
    }

    /// Receives only jobs of this group, in order. Default: of any group, and jobs without a group.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Sets whether up to 10 jobs of the first group come first, then those of the next, as SQS
    /// answers. Default false: one job of each group that is due, and further ones of the same
    /// groups if that is fewer than asked for.
    pub fn together(mut self, together: bool) -> Self {
        self.together = together;
        self
    }

    /// Receives for several clients at once: up to [`max`](Self::max) jobs for each, at most 1000
    /// together. The first `max` jobs are for the first, and so on: no group is in two of these.
    /// Not with a [`group`](Self::group) or an [`attempt_id`](Self::attempt_id). Default 1.
    pub fn requests(mut self, requests: u32) -> Self {
        self.requests = requests;
        self
    }

    /// Names this receive, 1 to 128 characters. A repetition within 5 minutes (because the answer
    /// was lost on the way) gets the same jobs with the same receipts, as far as their claims still
    /// stand. Default none.
    pub fn attempt_id(mut self, id: impl Into<String>) -> Self {
        self.attempt_id = Some(id.into());
        self
    }
}

/// A job that was received. Its `Debug` leaves the data out, its `Serialize` does not.
#[derive(Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Received {
    /// The argument of [`Client::ack`], [`Client::nack`] and [`Client::extend`].
    pub receipt: Receipt,
    /// The job's id. The jobs of a group run in the order of their ids.
    pub id: i64,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// The number of the attempt, from 1. Attempts that were released with the job before count
    /// here too.
    pub attempt: u32,
    /// The producer's data; JSON `null` for a payload. JSON that only `PostgreSQL` can read (nested
    /// deeper than 127 levels, numbers beyond `f64`) comes as a string: its text. A number of more
    /// digits than `f64` holds is rounded; [`data_text`](Self::data_text) and
    /// [`decode`](Self::decode) have all of them.
    pub data: Value,
    #[serde(skip)]
    data_text: String,
    /// The raw bytes, if the producer gave bytes instead of JSON. In JSON: `\x` and hexadecimal
    /// digits.
    #[serde(serialize_with = "optional_bytes")]
    pub payload: Option<Vec<u8>>,
    /// The format of the bytes, as the producer named it.
    pub content_type: Option<String>,
    /// The job's name.
    pub name: Option<String>,
    /// The producer's own id of the job.
    pub reference: Option<String>,
    /// The headers that the producer gave it, by name.
    pub headers: BTreeMap<String, String>,
    /// When it was enqueued: the begin of the producer's transaction.
    pub enqueued_at: DateTime<Utc>,
    /// When its visibility ends, unless it is extended; by the database's clock. The job may be
    /// taken over 1.75 s after that was noticed, or at once with
    /// [`QueueSettings::strict_visibility`](crate::admin::QueueSettings::strict_visibility).
    /// [`Client::ack`] and [`Client::extend`] work until then.
    pub visible_until: DateTime<Utc>,
    /// The key for calls to other services: see [`ActiveJob::key`](crate::ActiveJob::key).
    pub key: String,
    /// The attributes that an SQS client gave it, as SQS spells them: an object by name.
    pub attributes: Option<Value>,
    /// Its deduplication id: the producer's, or the hash of its content.
    pub dedup_id: Option<String>,
    /// When its first attempt began, as far as its history goes back.
    pub first_received_at: DateTime<Utc>,
    /// The queue that it was moved from when it ran out of attempts.
    pub moved_from: Option<String>,
    /// The last checkpoint of an attempt before this one ([`Client::checkpoint`]).
    pub checkpoint: Option<Value>,
    #[serde(skip)]
    checkpoint_text: Option<String>,
}

impl Received {
    /// Returns the due time that a [`Schedule`](crate::Schedule) made the job for; `None` if none
    /// did.
    pub fn scheduled_for(&self) -> Option<DateTime<Utc>> {
        headers::scheduled_for(&self.headers)
    }

    /// Returns the batch whose follow-up the job is; `None` if it is none.
    pub fn ended_batch(&self) -> Option<i64> {
        headers::ended_batch(&self.headers)
    }
}

/// Leaves out the data: a job may be logged.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("receipt", &self.receipt)
            .field("id", &self.id)
            .field("group", &self.group)
            .field("attempt", &self.attempt)
            .field("data", &Redacted)
            .field("payload", &self.payload.as_ref().map(|_| Redacted))
            .field("content_type", &self.content_type)
            .field("name", &self.name)
            .field("reference", &self.reference)
            .field("headers", &Redacted)
            .field("enqueued_at", &self.enqueued_at)
            .field("visible_until", &self.visible_until)
            .field("key", &self.key)
            .field("attributes", &self.attributes.as_ref().map(|_| Redacted))
            .field("dedup_id", &self.dedup_id)
            .field("first_received_at", &self.first_received_at)
            .field("moved_from", &self.moved_from)
            .field("checkpoint", &self.checkpoint.as_ref().map(|_| Redacted))
            .finish_non_exhaustive()
    }
}

impl Received {
    /// Decodes the data. Raw bytes are in [`payload`](Self::payload) instead.
    ///
    /// # Errors
    /// serde's, without the data.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.data_text)
            .map_err(|error| serde_json::Error::custom(json_error(&error)))
    }

    /// Returns the text of [`data`](Self::data) as PostgreSQL has it: its numbers have all their
    /// digits. `null` for a payload.
    pub fn data_text(&self) -> &str {
        &self.data_text
    }

    /// Returns the text of [`checkpoint`](Self::checkpoint), as [`data_text`](Self::data_text)
    /// does.
    pub fn checkpoint_text(&self) -> Option<&str> {
        self.checkpoint_text.as_deref()
    }
}

/// Proof of a claim: the job's id and the token. As text (`Display`, `FromStr`, serde) it is the
/// argument of the SQL functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receipt {
    job: i64,
    token: Uuid,
}

impl Receipt {
    /// Returns the job's id.
    pub fn job(&self) -> i64 {
        self.job
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.token.hyphenated())
    }
}

/// A text that is not a [`Receipt`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a receipt: pass it as it was received")]
pub struct ParseReceiptError {
    text: String,
}

impl FromStr for Receipt {
    type Err = ParseReceiptError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let (job, token) = text.split_once('.')?;
            let receipt = Self {
                job: job.parse().ok()?,
                token: Uuid::try_parse_ascii(token.as_bytes()).ok()?,
            };
            (receipt.to_string() == text).then_some(receipt)
        };
        parsed().ok_or_else(|| ParseReceiptError { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Receipt {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Receipt {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a receiver's call failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The receipt is stale.
    #[error(
        "the receipt of job {job} is stale: its visibility ended and another call has received the job, or it was acked, nacked or deleted; undo what this attempt did"
    )]
    Stale {
        /// The job.
        job: i64,
    },
    /// Another transaction has had the job's or its group's row for half a second.
    #[error("job {job} is locked by another transaction: try again")]
    Busy {
        /// The job.
        job: i64,
    },
    /// An argument is out of its range, or the transaction is not READ COMMITTED.
    #[error("{message} ({hint})")]
    Refused {
        /// The message of the database.
        message: String,
        /// The hint of the database.
        hint: String,
    },
    /// The result could not be serialized.
    #[error("the result of job {job} cannot be serialized to JSON: {source}")]
    Serialize {
        /// The job.
        job: i64,
        /// The error of serde.
        #[source]
        source: serde_json::Error,
    },
    /// The database refused.
    #[error("{}", failed_call("call", .0))]
    Database(#[source] sqlx::Error),
}

impl ReceiveError {
    /// Returns the word for the error in spans.
    fn kind(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "stale",
            Self::Busy { .. } => "busy",
            Self::Refused { .. } => "refused",
            Self::Serialize { .. } => "serialize",
            Self::Database(_) => "database",
        }
    }
}

impl From<sqlx::Error> for ReceiveError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(e) = &error
            && let Some(e) = e.try_downcast_ref::<PgDatabaseError>()
            && let (Some(hint), "22023" | "0A000") = (e.hint(), e.code())
        {
            return Self::Refused { message: e.message().to_owned(), hint: hint.to_owned() };
        }
        Self::Database(redact_detail(error))
    }
}

impl Client {
    /// Receives jobs: the heads of the groups served least recently, and jobs without a group. If
    /// that is fewer than asked for, followers of the same groups, in order, up to 10 of a group.
    /// [`Receive::together`] has those of the first group come first. A job that is taken over
    /// comes alone. All jobs have 4 MiB at most as stored, or are one job.
    ///
    /// Until each job is [acked](Self::ack) or [nacked](Self::nack), or 1.75 s after its visibility
    /// (at once if that is [strict](crate::admin::QueueSettings::strict_visibility)), no other call
    /// returns it or other jobs of its group. Receivers and [`Processor`](crate::Processor)s may
    /// share a queue.
    ///
    /// It returns no job, and no error, if nothing is due, if the queue is paused or has reached
    /// its limit of jobs in flight, or if all groups with due jobs run, are halted or are paused.
    /// [`queues`](Self::queues) and [`explain_group`](Self::explain_group) tell which it is.
    ///
    /// On a pool or an idle connection it commits by itself. In a transaction, it keeps the groups
    /// of its jobs from all others until that ends, and the whole queue if that has a limit of jobs
    /// in flight.
    ///
    /// A job has [`QueueSettings::max_attempts`](crate::admin::QueueSettings::max_attempts)
    /// attempts (default 10), unless it names its own; [`QueueOptions`](crate::QueueOptions) are a
    /// processor's, and the settings go before them there too. A receiver does not learn that its
    /// job was cancelled: its ack counts, its nack ends the job as cancelled.
    ///
    /// # Errors
    /// [`ReceiveError::Refused`], [`ReceiveError::Database`].
    ///
    /// # Cancel safety
    /// Not cancel safe: the jobs may have been claimed. They are received again when their
    /// visibility ends, or at once by the same [`attempt_id`](Receive::attempt_id).
    pub async fn receive(
        &self,
        executor: impl PgExecutor<'_>,
        what: Receive,
    ) -> Result<Vec<Received>, ReceiveError> {
        let Receive { queue, limit, visibility, group, attempt_id, together, requests } = what;
        for (field, text) in [
            ("queue", Some(&queue)),
            ("group", group.as_ref()),
            ("receive attempt id", attempt_id.as_ref()),
        ] {
            // The function of the database checks all else.
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(nul_refusal(&format!("the {field}")));
            }
        }
        let span = begin_receive(&queue);
        let received = async {
            let arguments = ReceiveArguments {
                queue: &queue,
                limit: i32::try_from(limit).unwrap_or(i32::MAX),
                visibility,
                group: group.as_deref(),
                attempt_id: attempt_id.as_deref(),
                together,
                requests: i32::try_from(requests).unwrap_or(i32::MAX),
            };
            let rows = self.store.receive(executor, arguments);
            rows.await?.into_iter().map(decode_row).collect::<Result<Vec<_>, ReceiveError>>()
        };
        let received = in_span(&span, received).await?;
        span.record("messaging.batch.message_count", count(received.len()));
        record_receive(&queue, received.len());
        Ok(received)
    }

    /// Ends a received job as succeeded. In the caller's transaction it commits together with what
    /// the caller wrote there: exactly once, if the caller rolls back on an error. Jobs of a group
    /// that were received together may be acked in any order.
    ///
    /// # Errors
    /// [`ReceiveError::Stale`], [`ReceiveError::Busy`], [`ReceiveError::Refused`],
    /// [`ReceiveError::Database`].
    ///
    /// # Cancel safety
    /// Not cancel safe: the job may be acked. A second ack then returns [`ReceiveError::Stale`].
    pub async fn ack(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
    ) -> Result<(), ReceiveError> {
        self.end_received(executor, receipt, None).await
    }

    /// [`ack`](Self::ack) with a result, which is kept with the job.
    ///
    /// # Errors
    /// As [`ack`](Self::ack), and [`ReceiveError::Serialize`].
    pub async fn ack_with(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        result: &(impl Serialize + ?Sized),
    ) -> Result<(), ReceiveError> {
        let result = serde_json::to_string(result)
            .map_err(|source| ReceiveError::Serialize { job: receipt.job, source })?;
        if has_nul(&result) {
            return Err(nul_refusal(&format!("the result of job {}", receipt.job)));
        }
        let (size, limit) = (result.len(), self.enqueue.data_limit.min(DATA_LIMIT));
        if size > limit {
            let job = receipt.job;
            return Err(ReceiveError::Refused {
                message: format!(
                    "the result of job {job} has {size} bytes, at most {limit} are allowed"
                ),
                hint: String::from("Store it elsewhere, and ack with a reference."),
            });
        }
        self.end_received(executor, receipt, Some(&result)).await
    }

    async fn end_received(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        result: Option<&str>,
    ) -> Result<(), ReceiveError> {
        let acked = async {
            let state = self.store.ack(executor, &receipt.to_string(), result).await?;
            check_receipt(state, receipt)
        };
        in_span(&begin_ack(receipt.job), acked).await
    }

    /// Gives a received job back: it keeps its place and is due after `delay` (at most 100 years;
    /// `None`: the [backoff](crate::admin::QueueSettings::backoff) of its queue, by default 1 s and
    /// twice as long each time); its group waits for it. The attempt counts. Followers that were
    /// received with it go back too, without an attempt, and their receipts become stale. If it is
    /// out of attempts, it ends as failed, and its group does what
    /// [`set_group_policy`](crate::admin::Operator::set_group_policy) says, or else
    /// [`QueueSettings::out_of_attempts`](crate::admin::QueueSettings::out_of_attempts). Parking,
    /// and the end of a halt at its deadline, need a processor with maintenance.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    ///
    /// # Cancel safety
    /// Not cancel safe: the job may be given back. A second nack then returns
    /// [`ReceiveError::Stale`].
    pub async fn nack(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        delay: impl Into<Option<Duration>>,
    ) -> Result<(), ReceiveError> {
        self.give_back(executor, receipt, delay.into(), None).await
    }

    /// [`nack`](Self::nack) with an error message, for the job's error and history.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn nack_with(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        delay: impl Into<Option<Duration>>,
        error: &str,
    ) -> Result<(), ReceiveError> {
        let error = storable_text(error);
        self.give_back(executor, receipt, delay.into(), Some(&error)).await
    }

    /// Puts a received job off, because something else is not ready: it keeps its place and is due
    /// after `delay` (at most 100 years); its group waits for it. No attempt counts, and nothing is
    /// written to its error and history. Followers that were received with it go back too, and
    /// their receipts become stale. A job that was put off `max_snoozes` times (0 to 10,000; as a
    /// rule [`QueueOptions::MAX_SNOOZES`](crate::QueueOptions::MAX_SNOOZES)) is given back as by
    /// [`nack`](Self::nack) without a delay.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    ///
    /// # Cancel safety
    /// Not cancel safe: the job may be put off. A second call then returns
    /// [`ReceiveError::Stale`].
    pub async fn snooze(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        delay: Duration,
        max_snoozes: u32,
    ) -> Result<(), ReceiveError> {
        let snoozed = async {
            let text = receipt.to_string();
            check_receipt(self.store.snooze(executor, &text, delay, max_snoozes).await?, receipt)
        };
        in_span(&begin_nack(receipt.job), snoozed).await
    }

    /// Lets the group of a received job rest until `until`, a [`Duration`] from now or a time, by
    /// the database's clock, as [`ActiveJob::rest_group`](crate::ActiveJob::rest_group) does: no
    /// job of it is received or started before that. The job itself stays received:
    /// [`snooze`](Self::snooze) puts it off. Returns whether the rest counts: `false` if a pause
    /// stands that lasts as long, or `until` is over. In a transaction it counts when that commits.
    ///
    /// # Errors
    /// As [`ack`](Self::ack); [`ReceiveError::Refused`] also for a job without a group, and for an
    /// end in more than 100 years. [`ReceiveError::Busy`]: another transaction has had the row of
    /// the pause for half a second.
    ///
    /// # Cancel safety
    /// Safe to repeat.
    pub async fn rest_group(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        until: impl Into<Until>,
        reason: &str,
    ) -> Result<bool, ReceiveError> {
        self.rest(
            executor,
            receipt,
            RestArguments { whole_queue: false, until: until.into(), reason },
        )
        .await
    }

    /// Lets the whole queue of a received job rest, as [`rest_group`](Self::rest_group) does with
    /// its group.
    ///
    /// # Errors
    /// As [`rest_group`](Self::rest_group), and a job needs no group.
    ///
    /// # Cancel safety
    /// Safe to repeat.
    pub async fn rest_queue(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        until: impl Into<Until>,
        reason: &str,
    ) -> Result<bool, ReceiveError> {
        self.rest(
            executor,
            receipt,
            RestArguments { whole_queue: true, until: until.into(), reason },
        )
        .await
    }

    async fn rest(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        arguments: RestArguments<'_>,
    ) -> Result<bool, ReceiveError> {
        match self.store.rest(executor, &receipt.to_string(), arguments).await? {
            RestState::Set => Ok(true),
            RestState::Kept => Ok(false),
            RestState::Stale => Err(ReceiveError::Stale { job: receipt.job }),
            RestState::Busy => Err(ReceiveError::Busy { job: receipt.job }),
        }
    }

    async fn give_back(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        delay: Option<Duration>,
        error: Option<&str>,
    ) -> Result<(), ReceiveError> {
        let nacked = async {
            let state = self.store.nack(executor, &receipt.to_string(), delay, error).await?;
            check_receipt(state, receipt)
        };
        in_span(&begin_nack(receipt.job), nacked).await
    }

    /// Says how far a received job is, as [`ActiveJob::progress`](crate::ActiveJob::progress) does:
    /// `percent` from 0 to 100, and a message, which is cut to 400 characters. Each call writes:
    /// about one a second is enough. In the caller's transaction it is seen after the commit.
    ///
    /// # Errors
    /// As [`ack`](Self::ack): the claim must stand.
    ///
    /// # Cancel safety
    /// Safe to repeat.
    pub async fn progress(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        percent: u8,
        message: &str,
    ) -> Result<(), ReceiveError> {
        let (text, message) = (receipt.to_string(), storable_text(message));
        let state = self.store.report_received(executor, &text, percent, &message).await?;
        check_receipt(state, receipt)
    }

    /// Keeps a checkpoint of a received job, as JSON of up to 64 KiB, in place of the one before:
    /// the next receive of the job has it as [`Received::checkpoint`], and a handler as
    /// [`last_checkpoint`](crate::ActiveJob::last_checkpoint). It is kept until the job succeeds or
    /// is deleted. Each call writes.
    ///
    /// # Errors
    /// As [`ack`](Self::ack): the claim must stand.
    ///
    /// # Cancel safety
    /// Safe to repeat.
    pub async fn checkpoint(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        checkpoint: &(impl Serialize + ?Sized),
    ) -> Result<(), ReceiveError> {
        let json = checkpoint_json(checkpoint).map_err(|error| ReceiveError::Refused {
            message: error.to_string(),
            hint: String::from("Keep a place in the work, and the work elsewhere."),
        })?;
        let state = self.store.keep_checkpoint(executor, &receipt.to_string(), &json).await?;
        check_receipt(state, receipt)
    }

    /// Extends a claim to `visibility` from now on (0 to 12 hours), whatever is left of it. Jobs of
    /// a group that were received together have one claim: it is extended for all of them.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    ///
    /// # Cancel safety
    /// Safe to repeat.
    pub async fn extend(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), ReceiveError> {
        let state = self.store.extend_received(executor, &receipt.to_string(), visibility).await?;
        check_receipt(state, receipt)
    }

    /// [`ack`](Self::ack) for many receipts, at most 1000, in one statement. Returns an answer to
    /// each, in the order of the receipts: [`ReceiveError::Stale`] and [`ReceiveError::Busy`] are
    /// of one receipt, and hurt no other.
    ///
    /// # Errors
    /// [`ReceiveError::Refused`], [`ReceiveError::Database`]: nothing was changed.
    ///
    /// # Cancel safety
    /// As [`ack`](Self::ack).
    pub async fn ack_many(
        &self,
        executor: impl PgExecutor<'_>,
        receipts: &[Receipt],
    ) -> Result<Vec<Result<(), ReceiveError>>, ReceiveError> {
        Ok(check_receipts(self.store.ack_many(executor, texts(receipts)).await?, receipts))
    }

    /// [`nack`](Self::nack) for many receipts, at most 1000, in one statement. Each attempt counts,
    /// also of jobs that another of the receipts would have given back. Returns as
    /// [`ack_many`](Self::ack_many) does.
    ///
    /// # Errors
    /// As [`ack_many`](Self::ack_many).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn nack_many(
        &self,
        executor: impl PgExecutor<'_>,
        receipts: &[Receipt],
        delay: impl Into<Option<Duration>>,
    ) -> Result<Vec<Result<(), ReceiveError>>, ReceiveError> {
        let states = self.store.nack_many(executor, texts(receipts), delay.into(), None).await?;
        Ok(check_receipts(states, receipts))
    }

    /// [`extend`](Self::extend) for many receipts, at most 1000, in one statement. Returns as
    /// [`ack_many`](Self::ack_many) does.
    ///
    /// # Errors
    /// As [`ack_many`](Self::ack_many).
    ///
    /// # Cancel safety
    /// Safe to repeat.
    pub async fn extend_many(
        &self,
        executor: impl PgExecutor<'_>,
        receipts: &[Receipt],
        visibility: Duration,
    ) -> Result<Vec<Result<(), ReceiveError>>, ReceiveError> {
        let states = self.store.extend_many(executor, texts(receipts), visibility).await?;
        Ok(check_receipts(states, receipts))
    }
}

/// Makes a call in its span, which notes a failure.
async fn in_span<T>(
    span: &Span,
    call: impl Future<Output = Result<T, ReceiveError>>,
) -> Result<T, ReceiveError> {
    let result = call.instrument(span.clone()).await;
    if let Err(error) = &result {
        record_failure(span, error.kind());
    }
    result
}

fn nul_refusal(what: &str) -> ReceiveError {
    ReceiveError::Refused {
        message: format!("{what} has a NUL character, which PostgreSQL cannot hold"),
        hint: String::from("Remove or encode it."),
    }
}

fn check_receipt(state: ReceiptState, receipt: &Receipt) -> Result<(), ReceiveError> {
    match state {
        ReceiptState::Done => Ok(()),
        ReceiptState::Stale => Err(ReceiveError::Stale { job: receipt.job }),
        ReceiptState::Busy => Err(ReceiveError::Busy { job: receipt.job }),
    }
}

fn texts(receipts: &[Receipt]) -> Vec<String> {
    receipts.iter().map(Receipt::to_string).collect()
}

fn check_receipts(
    states: Vec<ReceiptState>,
    receipts: &[Receipt],
) -> Vec<Result<(), ReceiveError>> {
    states.into_iter().zip(receipts).map(|(state, receipt)| check_receipt(state, receipt)).collect()
}

fn decode_row(row: ReceivedRow) -> Result<Received, ReceiveError> {
    let receipt = row.receipt.parse().map_err(|error: ParseReceiptError| {
        ReceiveError::Database(sqlx::Error::Decode(Box::new(error)))
    })?;
    let (checkpoint, checkpoint_text) = row.checkpoint.map(|json| (json.value, json.text)).unzip();
    Ok(Received {
        receipt,
        id: row.id,
        group: row.group,
        attempt: row.attempt,
        data: row.data.value,
        data_text: row.data.text,
        payload: row.payload,
        content_type: row.content_type,
        name: row.name,
        reference: row.reference,
        headers: row.headers,
        enqueued_at: row.enqueued_at,
        visible_until: row.visible_until,
        key: row.key,
        attributes: row.attributes,
        dedup_id: row.dedup_id,
        first_received_at: row.first_received_at,
        moved_from: row.moved_from,
        checkpoint,
        checkpoint_text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_read_as_it_is_written_and_nothing_else_is() {
        let text = "17.3f0c1d9e-52a6-4a35-9c1b-0123456789ab";
        let receipt: Receipt = text.parse().unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!((receipt.job(), receipt.to_string().as_str()), (17, text));
        let json = serde_json::to_value(receipt).unwrap_or_default();
        assert_eq!(json, text);
        assert_eq!(serde_json::from_value::<Receipt>(json).ok(), Some(receipt));
        for bad in ["", "17", "17.", ".3f0c", "x.y", "17.3F0C1D9E-52A6-4A35-9C1B-0123456789AB"] {
            assert!(bad.parse::<Receipt>().is_err(), "{bad}");
        }
    }
}

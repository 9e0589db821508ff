//! Jobs: what an enqueue returns, and a job as the database has it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::attempt::AttemptInfo;
use crate::job::headers;
use crate::job::json::{optional_bytes, optional_seconds};
use crate::job::progress::Progress;
use crate::job::redact::Redacted;

/// The result of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "enqueued", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Enqueued {
    /// The job was written.
    New {
        /// The job's id. Within a group jobs run in the order of their ids.
        id: i64,
    },
    /// A job with the same deduplication id was enqueued within the window, or a job has the same
    /// [unique key](crate::Unique): no job was written. With
    /// [`Unique::replace`](crate::Unique::replace) and
    /// [`Unique::debounce`](crate::Unique::debounce) that job has the new data now.
    Duplicate {
        /// The id of that first job. It may be of another group. After a window it may have ended
        /// or been deleted meanwhile.
        id: i64,
    },
}

impl Enqueued {
    /// Returns the job's id; of a duplicate, that of the first job.
    pub fn id(self) -> i64 {
        match self {
            Self::New { id } | Self::Duplicate { id } => id,
        }
    }

    /// Returns whether nothing was written, because the job was there already.
    pub fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate { .. })
    }
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobStatus {
    /// Waiting: for its turn, for its time, or for a retry.
    Queued,
    /// Claimed by a worker.
    Started,
    /// Its handler returned `Ok`, and what it wrote is committed.
    Succeeded,
    /// Out of attempts, or failed for good: a dead letter.
    Failed,
    /// Cancelled before it ran to an end.
    Cancelled,
    /// Stepped aside with a failed job of its group: see
    /// [`OutOfAttempts::Park`](crate::OutOfAttempts::Park).
    Parked,
}

impl JobStatus {
    pub(crate) const ALL: [Self; 6] =
        [Self::Queued, Self::Started, Self::Succeeded, Self::Failed, Self::Cancelled, Self::Parked];

    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Parked => "parked",
        }
    }

    /// Returns whether the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A job as the database has it.
///
/// Its `Debug` leaves the data out, its `Serialize` does not: pages and logs for those who may not
/// see what jobs carry leave out `data`, `payload` and `result`.
#[derive(Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Job {
    /// Its id.
    pub id: i64,
    /// Its queue.
    pub queue: String,
    /// The queue that it came from, as a dead letter: this one is its dead-letter queue.
    pub moved_from: Option<String>,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Its limit key, if it has one.
    pub limit_key: Option<String>,
    /// Its state.
    pub status: JobStatus,
    /// The producer's data; null for raw bytes. JSON that only `PostgreSQL` can read (nested deeper
    /// than 127 levels, numbers beyond `f64`) comes as a string: its text. So does such a `result`.
    /// A number of more digits than `f64` holds is rounded; [`data_text`](Self::data_text) has all
    /// of them.
    pub data: serde_json::Value,
    #[serde(skip)]
    pub(crate) data_text: String,
    /// The raw bytes of [`NewJob::bytes`](crate::NewJob::bytes). In JSON: `\x` and hexadecimal
    /// digits.
    #[serde(serialize_with = "optional_bytes")]
    pub payload: Option<Vec<u8>>,
    /// The format of the raw bytes, as the producer named it.
    pub content_type: Option<String>,
    /// The kind of the job, as the producer named it.
    pub name: Option<String>,
    /// The producer's own id of the job.
    pub reference: Option<String>,
    /// The headers that the producer gave it, by name.
    pub headers: BTreeMap<String, String>,
    /// 0 to 9: a higher one ages faster.
    pub priority: u8,
    /// The job does not begin after this time.
    pub expires_at: Option<DateTime<Utc>>,
    /// The lease that the producer set; `None`: the queue's. In JSON: seconds.
    #[serde(serialize_with = "optional_seconds")]
    pub lease: Option<Duration>,
    /// The deduplication id of its enqueue, given or computed from its content.
    pub dedup_id: Option<String>,
    /// The [unique key](crate::Unique) of its enqueue.
    pub unique_key: Option<String>,
    /// How often an enqueue with its unique key replaced its data.
    pub replaced: u32,
    /// When one did so last.
    pub replaced_at: Option<DateTime<Utc>>,
    /// The batch that it is of ([`NewJob::batch`](crate::NewJob::batch)).
    pub batch: Option<i64>,
    /// The output of the handler, once the job has succeeded.
    pub result: Option<serde_json::Value>,
    #[serde(skip)]
    pub(crate) result_text: Option<String>,
    /// The failure of the last attempt that did not succeed.
    pub error: Option<Failure>,
    /// The number of attempts that began.
    pub attempts: u32,
    /// The number of those that do not count: released ones, and all before a retry or a redrive.
    pub attempts_forgiven: u32,
    /// How often it was put off, since it was enqueued or retried by hand.
    pub snoozes: u32,
    /// The limit of attempts that count, as the producer set it; `None`: the queue's.
    pub max_attempts: Option<u32>,
    /// The job does not run before this time; after a retry, that of the next attempt.
    pub run_at: DateTime<Utc>,
    /// When it was enqueued: the begin of the producer's transaction.
    pub created_at: DateTime<Utc>,
    /// When its last attempt was claimed.
    pub last_started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// How far it is, as it was reported last; `None` once it has succeeded.
    pub progress: Option<Progress>,
    /// When its last checkpoint was written; `None` once it has succeeded.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// The attempts that did not succeed, oldest first, at most the last [`Job::HISTORY_LIMIT`].
    pub history: Vec<AttemptRecord>,
}

/// Leaves out the data: a job may be logged.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("moved_from", &self.moved_from)
            .field("group", &self.group)
            .field("limit_key", &self.limit_key)
            .field("status", &self.status)
            .field("data", &Redacted)
            .field("payload", &self.payload.as_ref().map(|_| Redacted))
            .field("content_type", &self.content_type)
            .field("name", &self.name)
            .field("reference", &self.reference)
            .field("headers", &Redacted)
            .field("priority", &self.priority)
            .field("expires_at", &self.expires_at)
            .field("lease", &self.lease)
            .field("dedup_id", &self.dedup_id)
            .field("unique_key", &self.unique_key)
            .field("replaced", &self.replaced)
            .field("replaced_at", &self.replaced_at)
            .field("batch", &self.batch)
            .field("result", &self.result.as_ref().map(|_| Redacted))
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("attempts_forgiven", &self.attempts_forgiven)
            .field("snoozes", &self.snoozes)
            .field("progress", &self.progress)
            .field("checkpoint_at", &self.checkpoint_at)
            .field("max_attempts", &self.max_attempts)
            .field("run_at", &self.run_at)
            .field("created_at", &self.created_at)
            .field("last_started_at", &self.last_started_at)
            .field("finished_at", &self.finished_at)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// Bounds the history of a job.
    pub const HISTORY_LIMIT: u32 = 20;

    /// Returns the text of [`data`](Self::data) as PostgreSQL has it: its numbers have all their
    /// digits. `null` for raw bytes.
    pub fn data_text(&self) -> &str {
        &self.data_text
    }

    /// Returns the text of [`result`](Self::result), as [`data_text`](Self::data_text) does.
    pub fn result_text(&self) -> Option<&str> {
        self.result_text.as_deref()
    }

    /// Returns the due time that a [`Schedule`](crate::Schedule) made the job for; `None` if none
    /// did.
    pub fn scheduled_for(&self) -> Option<DateTime<Utc>> {
        headers::scheduled_for(&self.headers)
    }

    /// Returns the batch whose follow-up the job is; `None` if it is none.
    pub fn ended_batch(&self) -> Option<i64> {
        headers::ended_batch(&self.headers)
    }

    /// Returns its last attempt, and the limit if the producer set one.
    pub fn attempt(&self) -> AttemptInfo {
        AttemptInfo::new(self.attempts, self.attempts_forgiven, self.max_attempts)
    }
}

/// An attempt that did not succeed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// When it was claimed.
    pub started_at: Option<DateTime<Utc>>,
    /// When its outcome was recorded.
    pub finished_at: DateTime<Utc>,
    /// How it ended.
    pub kind: FailureKind,
    /// The error in one line; `None` for a release or a request.
    pub message: Option<String>,
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// How it ended.
    pub kind: FailureKind,
    /// The error's message.
    pub message: String,
    /// The messages of its sources, outermost first.
    #[serde(default)]
    pub chain: Vec<String>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

impl Failure {
    /// Replaces the characters of its texts that some database lacks, as `\u{e9}`. A text that has
    /// none, and was refused all the same, is left out.
    pub(crate) fn make_plain(&mut self) {
        let texts = || std::iter::once(&self.message).chain(&self.chain);
        if texts().all(|text| text.is_ascii()) {
            self.message = String::from("(the database refused the words of this failure)");
            self.chain.clear();
            return;
        }
        for text in std::iter::once(&mut self.message).chain(&mut self.chain) {
            let escape =
                |c: char| if c.is_ascii() { c.to_string() } else { c.escape_unicode().to_string() };
            *text = text.chars().map(escape).collect();
        }
    }
}

/// The ways in which an attempt can end without success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler returned an error.
    Error,
    /// The handler returned [`JobError::fail`](crate::JobError::fail): no further attempt.
    Permanent,
    /// The handler panicked.
    Panic,
    /// The handler ran longer than its timeout.
    Timeout,
    /// The data does not decode into the handler's type. No further attempt if
    /// [`retry_undecodable`](crate::QueueOptions::retry_undecodable) is false.
    Data,
    /// The process has no handler for the kind of the job ([`Kinds`](crate::Kinds)). The attempt
    /// does not count, and the job is retried in its place, however often.
    UnknownKind,
    /// The handler's output could not be stored, or is larger than
    /// [`Client::data_limit`](crate::Client::data_limit) allows.
    Output,
    /// The handler's transaction could not be committed (a deferred constraint, say).
    Commit,
    /// The handler ended the job's transaction by hand: no further attempt. Work that it committed
    /// stays.
    TransactionEnded,
    /// The session that held the job was lost.
    ConnectionLost,
    /// The lease of the job ended, or the presence of its process could not be proved in time.
    LeaseLost,
    /// The worker died or was lost before the attempt ended.
    WorkerLost,
    /// An operator has [aborted](crate::admin::Operator::abort) the attempt.
    Aborted,
    /// A shutdown ended the attempt, or its timeout passed while it waited in
    /// [`tx`](crate::ActiveJob::tx) for a connection of the pool. It does not count.
    Released,
    /// Cancelled on request.
    Cancelled,
    /// Given up by [`skip`](crate::admin::Operator::skip).
    Skipped,
    /// The job expired before an attempt could begin.
    Expired,
    /// Older than [`QueueOptions::ignore_before`](crate::QueueOptions::ignore_before) allows.
    Ignored,
}

impl FailureKind {
    /// Returns the word that logs use, and the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Permanent => "permanent",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Data => "data",
            Self::UnknownKind => "unknown_kind",
            Self::Output => "output",
            Self::Commit => "commit",
            Self::TransactionEnded => "transaction_ended",
            Self::ConnectionLost => "connection_lost",
            Self::LeaseLost => "lease_lost",
            Self::WorkerLost => "worker_lost",
            Self::Aborted => "aborted",
            Self::Released => "released",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::Expired => "expired",
            Self::Ignored => "ignored",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! Jobs: what a producer writes, and what a look at one shows.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};

use crate::error::EnqueueError;
use crate::name;
use crate::retry::MAX_DELAY;

/// A job to be enqueued: `NewJob::new("postings", &data).group("account-42")`.
///
/// Nothing is checked until [`enqueue`](crate::enqueue), which names what is wrong.
///
/// ```
/// # use std::time::Duration;
/// use seriatim::NewJob;
///
/// #[derive(serde::Serialize)]
/// struct Posting { account: u32, cents: i64 }
///
/// let job = NewJob::new("postings", &Posting { account: 42, cents: 1_500 })
///     .group("account-42")
///     .max_attempts(5)
///     .timeout(Duration::from_secs(10));
/// ```
#[derive(Debug)]
#[must_use = "a NewJob does nothing until it is enqueued"]
pub struct NewJob {
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    pub(crate) data: Result<String, serde_json::Error>,
    pub(crate) start: Start,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<Duration>,
}

/// When a job may first run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    Now,
    After(Duration),
    At(DateTime<Utc>),
}

impl NewJob {
    /// A job of `queue` with `data` serialized as JSON, without a group, due at once.
    pub fn new(queue: impl Into<String>, data: &(impl Serialize + ?Sized)) -> Self {
        Self {
            queue: queue.into(),
            group: None,
            data: serde_json::to_string(data),
            start: Start::Now,
            max_attempts: None,
            timeout: None,
        }
    }

    /// The group: its jobs run one at a time, in the order of their enqueues. 1 to 400 characters.
    ///
    /// A job without a group runs beside any other, oldest first.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Not before this much time has passed after the enqueue, by the database's clock.
    ///
    /// A delayed job keeps its place: later jobs of its group wait for it. Replaces [`run_at`](Self::run_at).
    pub fn delay(mut self, delay: Duration) -> Self {
        self.start = Start::After(delay);
        self
    }

    /// Not before this time, by the database's clock. Replaces [`delay`](Self::delay).
    pub fn run_at(mut self, time: DateTime<Utc>) -> Self {
        self.start = Start::At(time);
        self
    }

    /// At most this many runs, instead of the queue's [`RetryPolicy`](crate::RetryPolicy).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long the handler may run, instead of the queue's [`timeout`](crate::QueueOptions::timeout).
    /// Kept in whole milliseconds.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Checks everything that can be checked without the database; `index` is the job's position in the call.
    pub(crate) fn check(self, index: usize, data_limit: usize) -> Result<CheckedJob, EnqueueError> {
        let Self { queue, group, data, start, max_attempts, timeout } = self;
        name::check_queue(&queue).map_err(|source| EnqueueError::Name { index, source })?;
        if let Some(group) = &group {
            name::check_group(group).map_err(|source| EnqueueError::Name { index, source })?;
        }
        let data = data.map_err(|source| EnqueueError::Serialize { index, source })?;
        if data.len() > data_limit {
            return Err(EnqueueError::DataTooLarge { index, size: data.len(), limit: data_limit });
        }
        if has_nul(&data) {
            return Err(EnqueueError::DataHasNul { index });
        }
        let out_of_range =
            |field, value, range| EnqueueError::OutOfRange { index, field, value, range };
        let (delay, run_at) = match start {
            Start::Now => (None, None),
            Start::After(delay) if delay > MAX_DELAY => {
                return Err(out_of_range("delay", format!("{delay:?}"), "at most 100 years"));
            }
            Start::After(delay) => (Some(delay), None),
            // timestamptz begins in 4713 BC, adoption looks from 221 BC on, and nobody means either.
            Start::At(time) if !(0..10_000).contains(&time.year()) => {
                return Err(out_of_range("run_at", time.to_string(), "in the years 0 to 9999"));
            }
            Start::At(time) => (None, Some(time)),
        };
        let max_attempts = max_attempts
            .map(|n| match i32::try_from(n) {
                Ok(n) if n > 0 => Ok(n),
                _ => Err(out_of_range("max_attempts", n.to_string(), "1 to 2147483647")),
            })
            .transpose()?;
        let timeout = timeout
            .map(|limit| match i64::try_from(limit.as_millis()) {
                Ok(_) if limit < Duration::from_millis(1) || limit > MAX_DELAY => {
                    Err(out_of_range("timeout", format!("{limit:?}"), "1 ms to 100 years"))
                }
                Ok(ms) => Ok(ms),
                Err(_) => Err(out_of_range("timeout", format!("{limit:?}"), "1 ms to 100 years")),
            })
            .transpose()?;
        Ok(CheckedJob { queue, group, data, delay, run_at, max_attempts, timeout_ms: timeout })
    }
}

/// A [`NewJob`] that the database will take.
#[derive(Debug)]
pub(crate) struct CheckedJob {
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    pub(crate) data: String,
    pub(crate) delay: Option<Duration>,
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) max_attempts: Option<i32>,
    pub(crate) timeout_ms: Option<i64>,
}

/// Whether JSON text has an escaped NUL: `\u0000` behind an even number of backslashes. jsonb refuses it.
pub(crate) fn has_nul(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let escapes = json[..at].bytes().rev().take_while(|b| *b == b'\\').count();
        escapes % 2 == 0
    })
}

/// What an enqueue wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The job's id. Within a group jobs run in the order of their ids.
    pub id: i64,
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
}

impl JobStatus {
    pub(crate) const ALL: [Self; 5] =
        [Self::Queued, Self::Started, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// The word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the job has ended.
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
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Job {
    /// Its id.
    pub id: i64,
    /// Its queue.
    pub queue: String,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Its state.
    pub status: JobStatus,
    /// What the producer gave.
    pub data: serde_json::Value,
    /// What the handler returned, once succeeded.
    pub result: Option<serde_json::Value>,
    /// The failure of the last attempt that did not succeed.
    pub error: Option<Failure>,
    /// Runs begun.
    pub attempts: u32,
    /// The limit that the producer gave; none: the queue's.
    pub max_attempts: Option<u32>,
    /// Not before this time.
    pub run_at: DateTime<Utc>,
    /// When it was enqueued: the begin of the producer's transaction.
    pub created_at: DateTime<Utc>,
    /// When its last attempt was claimed.
    pub last_started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// The attempts that did not succeed, oldest first, at most the last [`Job::HISTORY_LIMIT`].
    pub history: Vec<AttemptRecord>,
}

impl Job {
    /// How many attempts the history keeps.
    pub const HISTORY_LIMIT: u32 = 20;
}

/// An attempt that did not succeed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When it was claimed.
    pub started_at: Option<DateTime<Utc>>,
    /// When its outcome was recorded.
    pub finished_at: DateTime<Utc>,
    /// How it ended.
    pub kind: FailureKind,
    /// What was wrong, in one line; none for a release or a request.
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
    /// Which attempt, from 1.
    pub attempt: u32,
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
    /// The data does not decode into the handler's type.
    Data,
    /// The handler's output could not be stored.
    Output,
    /// The handler's transaction could not be committed (a deferred constraint, say).
    Commit,
    /// The session that held the job was lost.
    ConnectionLost,
    /// The worker died or was lost before the attempt ended.
    WorkerLost,
    /// A shutdown ended the attempt; it is not held against the job.
    Released,
    /// Cancelled on request.
    Cancelled,
    /// Given up by [`skip`](crate::Client::skip).
    Skipped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_nul_is_found_and_a_written_backslash_is_not() {
        let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
        assert!(has_nul(&json("a\0b")));
        assert!(has_nul(&json("\\\0")));
        assert!(!has_nul(&json("\\u0000")));
        assert!(!has_nul(&json("plain")));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad = |job: NewJob| job.check(3, 100).map(|_| ()).map_err(|e| e.to_string());
        let job = || NewJob::new("q", &1);
        assert!(job().group("g").check(0, 100).is_ok());
        assert!(bad(job().max_attempts(0)).is_err_and(|e| e.contains("max_attempts of job 3")));
        assert!(bad(job().timeout(Duration::ZERO)).is_err_and(|e| e.contains("timeout of job 3")));
        assert!(bad(job().delay(Duration::MAX)).is_err_and(|e| e.contains("delay of job 3")));
        assert!(bad(job().run_at(DateTime::<Utc>::MAX_UTC)).is_err_and(|e| e.contains("run_at")));
        assert!(bad(NewJob::new("q", &"x".repeat(100))).is_err_and(|e| e.contains("102 bytes")));
        assert!(bad(NewJob::new("", &1)).is_err());
    }

    #[test]
    fn data_that_does_not_serialize_is_an_error_of_the_enqueue() {
        let bad = NewJob::new("q", &std::collections::HashMap::from([((1, 2), 3)]));
        assert!(matches!(bad.check(0, 100), Err(EnqueueError::Serialize { index: 0, .. })));
    }
}

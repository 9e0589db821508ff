//! A batch: jobs of any queues and groups, whose end starts one follow-up.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::job::error::BatchError;
use crate::job::explanation::BoundedCount;
use crate::job::job::JobStatus;
use crate::job::job_json::stored_job;
use crate::job::name;
use crate::job::new_job::{DATA_LIMIT, EnqueueSettings, NewJob};
use crate::job::words::{clock_time, counted};

/// Bounds a result that is kept with its batch, in bytes. A larger one is read from its job, while
/// that is kept.
pub(crate) const RESULT_LIMIT: usize = 64 * 1024;

/// A batch to open: its name, and the job that follows its jobs.
///
/// Inside of one group no batch is needed: a job that is enqueued last runs last. A batch is for
/// jobs of several groups or queues. Its jobs are enqueued with [`NewJob::batch`], until it is
/// sealed ([`Client::seal_batch`](crate::Client::seal_batch)). When they have ended, the follow-up
/// is enqueued, exactly once, by whichever process sees it first. It gets its place in its group
/// then, and has the batch in [`ActiveJob::ended_batch`](crate::ActiveJob::ended_batch).
///
/// Nothing is checked until [`open_batch`](crate::Client::open_batch), which names what is wrong.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::{Client, NewBatch, NewJob};
///
/// let client = Client::default();
/// let mut tx = pool.begin().await?;
/// let total = NewJob::new("totals", &"march").group("totals");
/// let batch = client.open_batch(&mut *tx, NewBatch::new("march", total)).await?;
/// let jobs = [41, 42].map(|account| {
///     NewJob::new("statements", &account).group(format!("account-{account}")).batch(batch)
/// });
/// client.enqueue_many(&mut *tx, jobs).await?;
/// client.seal_batch(&mut *tx, batch).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a NewBatch does nothing until it is opened"]
pub struct NewBatch {
    name: String,
    follow_up: NewJob,
    starts_when: BatchEnd,
}

impl NewBatch {
    /// Returns a batch with a name for people, 1 to 200 characters, which need not be unique, and
    /// its follow-up. A `delay` and a `time_to_live` of the follow-up count from the end of the
    /// batch. It takes no `run_at`, `expires_at`, deduplication id or batch of its own.
    pub fn new(name: impl Into<String>, follow_up: impl Into<NewJob>) -> Self {
        Self { name: name.into(), follow_up: follow_up.into(), starts_when: BatchEnd::default() }
    }

    /// Sets how the jobs must have ended. Default [`BatchEnd::AllSucceeded`].
    pub fn when(mut self, starts_when: BatchEnd) -> Self {
        self.starts_when = starts_when;
        self
    }

    /// Checks everything that needs no database.
    pub(crate) fn check(self, settings: &EnqueueSettings) -> Result<CheckedBatch, BatchError> {
        let Self { name, mut follow_up, starts_when } = self;
        name::check("batch", &name, name::BATCH_LIMIT)?;
        for layer in &settings.layers {
            layer(&mut follow_up);
        }
        let wrong = |mistake: String| BatchError::FollowUp { batch: name.clone(), mistake };
        let job = follow_up.check(None, settings.data_limit.min(DATA_LIMIT));
        let job = job.map_err(|error| wrong(error.to_string()))?;
        let (queue, group) = (job.queue.clone(), job.group.clone());
        let job = stored_job(job).map_err(|mistake| wrong(mistake.to_owned()))?;
        Ok(CheckedBatch { name, queue, group, job, starts_when })
    }
}

/// A batch that the database will accept.
#[derive(Debug)]
pub(crate) struct CheckedBatch {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    /// As the column `job` has it: the text of JSON.
    pub(crate) job: String,
    pub(crate) starts_when: BatchEnd,
}

/// How the jobs of a batch must have ended for its follow-up to be enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BatchEnd {
    /// All have ended, succeeded or not: failed for good, expired, cancelled, or moved to a
    /// dead-letter queue. A parked job has not ended.
    AllEnded,
    /// All have succeeded. While all have ended and one has not succeeded, the batch stays
    /// [`failed`](BatchState::Failed): a retry or a redrive can still complete it. The default.
    #[default]
    AllSucceeded,
}

impl BatchEnd {
    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllEnded => "all_ended",
            Self::AllSucceeded => "all_succeeded",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::AllEnded, Self::AllSucceeded].into_iter().find(|when| when.as_str() == word)
    }
}

impl fmt::Display for BatchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllEnded => "all have ended",
            Self::AllSucceeded => "all have succeeded",
        })
    }
}

/// Where a batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BatchState {
    /// It is not sealed: jobs may join.
    Open,
    /// It is sealed, and some of its jobs have not ended.
    Running,
    /// All its jobs have ended, not all have succeeded, and its follow-up starts only if they have.
    Failed,
    /// The database refused to enqueue its follow-up. Maintenance tries it again every 10 s.
    Refused,
    /// All its jobs have ended as they must: its follow-up is enqueued within a second.
    Ending,
    /// Its follow-up was enqueued.
    Ended,
    /// An operator has abandoned it: its follow-up is never enqueued.
    Abandoned,
}

impl BatchState {
    const ALL: [Self; 7] = [
        Self::Open,
        Self::Running,
        Self::Failed,
        Self::Refused,
        Self::Ending,
        Self::Ended,
        Self::Abandoned,
    ];

    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Running => "running",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Ending => "ending",
            Self::Ended => "ended",
            Self::Abandoned => "abandoned",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for BatchState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A batch as it is stored, and how far it is. Prints why it stands where it is and what to do, in
/// one or two sentences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Batch {
    /// Its number; a later one has a higher one.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: BatchState,
    /// How its jobs must have ended for its follow-up.
    pub starts_when: BatchEnd,
    /// The queue of its follow-up.
    pub queue: String,
    /// The group of its follow-up.
    pub group: Option<String>,
    /// When it was opened.
    pub opened_at: DateTime<Utc>,
    /// When it was sealed.
    pub sealed_at: Option<DateTime<Utc>>,
    /// When its follow-up was enqueued, or it was abandoned.
    pub ended_at: Option<DateTime<Utc>>,
    /// Since when it is known to be [`Failed`](BatchState::Failed).
    pub failed_at: Option<DateTime<Utc>>,
    /// Its follow-up, once that is enqueued.
    pub follow_up: Option<i64>,
    /// Why the database refused its follow-up.
    pub refused: Option<String>,
    /// The number of its jobs that have not ended.
    pub unfinished: BoundedCount,
    /// The number of its jobs that have succeeded.
    pub succeeded: BoundedCount,
    /// The number of its jobs that have failed for good or were cancelled, and do not run again.
    pub unsuccessful: BoundedCount,
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, starts_when, queue, unfinished, succeeded, unsuccessful, .. } = self;
        let jobs = |count: &BoundedCount| {
            if count.or_more { format!("{count} jobs") } else { counted(count.count, "job") }
        };
        write!(f, "Batch {id}, {name:?}, ")?;
        match self.state {
            BatchState::Open => write!(
                f,
                "is open since {}: {} unfinished, {succeeded} succeeded, {unsuccessful} did not. \
                 Seal it, or it never ends.",
                clock_time(&self.opened_at),
                jobs(unfinished),
            ),
            BatchState::Running => write!(
                f,
                "waits for {}: {succeeded} succeeded, {unsuccessful} did not. Its follow-up is \
                 enqueued to queue {queue:?} when {starts_when}.",
                jobs(unfinished),
            ),
            BatchState::Failed => write!(
                f,
                "has failed: all jobs have ended, {} did not succeed. Retry or redrive them, or \
                 abandon the batch.",
                jobs(unsuccessful),
            ),
            BatchState::Refused => write!(
                f,
                "cannot end: the database refused its follow-up in queue {queue:?} ({}). It is \
                 tried again every 10 s. Mend the cause, or abandon the batch.",
                self.refused.as_deref().unwrap_or("no reason is known"),
            ),
            BatchState::Ending => write!(
                f,
                "ends: its follow-up is enqueued to queue {queue:?} within a second, by any \
                 process with maintenance. If not, none runs, or a transaction that has joined the \
                 batch is open.",
            ),
            BatchState::Ended => {
                let (job, at) = (self.follow_up.unwrap_or_default(), self.ended_at.as_ref());
                write!(
                    f,
                    "has ended: {succeeded} succeeded, {unsuccessful} did not. Its follow-up is job {job}"
                )?;
                at.map_or(Ok(()), |at| write!(f, ", enqueued {}", clock_time(at)))?;
                f.write_str(".")
            }
            BatchState::Abandoned => {
                write!(f, "was abandoned")?;
                self.ended_at.as_ref().map_or(Ok(()), |at| write!(f, " {}", clock_time(at)))?;
                f.write_str(": its follow-up is never enqueued.")
            }
        }
    }
}

/// How a job of a batch has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BatchJob {
    /// The job's id.
    pub job: i64,
    /// Its queue.
    pub queue: String,
    /// Its group.
    pub group: Option<String>,
    /// How it ended last: succeeded, failed or cancelled. It may run again, after a retry.
    pub status: JobStatus,
    /// The output of its handler, or the result of its ack. `None` as well if it has more than
    /// 64 KiB and the job was deleted.
    pub result: Option<Value>,
    #[serde(skip)]
    pub(crate) result_text: Option<String>,
    /// When it ended.
    pub ended_at: DateTime<Utc>,
    /// The message of its last failure, if it did not succeed and is kept.
    pub error: Option<String>,
}

impl BatchJob {
    /// Reads the result as the type of the handler's output; `None` if there is none.
    ///
    /// # Errors
    /// The result is of another type.
    pub fn result<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.result_text().map(serde_json::from_str).transpose()
    }

    /// Returns the text of [`result`](Self::result) as PostgreSQL has it: its numbers have all
    /// their digits.
    pub fn result_text(&self) -> Option<&str> {
        self.result_text.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> EnqueueSettings {
        EnqueueSettings { data_limit: 100, notify: true, layers: Vec::new() }
    }

    #[test]
    fn a_batch_is_checked_with_its_follow_up() {
        let batch = |job| NewBatch::new("b", job).check(&settings());
        let checked = batch(NewJob::new("q", &1).group("g")).unwrap();
        assert_eq!(checked.job, "{\"data\":1}");
        assert_eq!(checked.starts_when, BatchEnd::AllSucceeded);
        let refused = |job| batch(job).map(|_| ()).unwrap_err().to_string();
        assert!(refused(NewJob::new("", &1)).contains("batch \"b\""));
        assert!(refused(NewJob::new("q", &1).batch(7)).contains("batch of its own"));
        assert!(refused(NewJob::new("q", &1).dedup_id("x")).contains("deduplication"));
        let nameless = NewBatch::new("", NewJob::new("q", &1)).check(&settings());
        assert!(matches!(nameless, Err(BatchError::Name(_))));
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for state in BatchState::ALL {
            assert_eq!(BatchState::parse(state.as_str()), Some(state));
        }
        for when in [BatchEnd::AllEnded, BatchEnd::AllSucceeded] {
            assert_eq!(BatchEnd::parse(when.as_str()), Some(when));
        }
        assert_eq!(BatchState::parse("x"), None);
    }
}

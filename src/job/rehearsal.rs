//! A rehearsal: which jobs it runs, and its report.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::job::job::Failure;
use crate::job::json::{optional_seconds, seconds};
use crate::job::outcome::EndedAs;
use crate::job::words::counted;

/// Which jobs of a group are rehearsed, and for how long.
#[derive(Debug, Clone)]
#[must_use = "a rehearsal runs nothing until it is given to Client::rehearse or Processor::rehearse"]
pub struct Rehearsal {
    pub(crate) group: String,
    pub(crate) from: Option<i64>,
    pub(crate) jobs: u32,
    pub(crate) within: Duration,
}

impl Rehearsal {
    /// A rehearsal of a group's next jobs, in order: the job that has halted the group, if one has,
    /// and those that wait. A pause and the times of the jobs do not count.
    pub fn of_group(group: impl Into<String>) -> Self {
        Self { group: group.into(), from: None, jobs: 10, within: Duration::from_secs(30) }
    }

    /// Begins at this job of the group, which must not have succeeded, in place of the next one: a
    /// dead letter, say. The jobs that were parked with it follow, and then those that wait behind
    /// it.
    pub fn from_job(self, job: i64) -> Self {
        Self { from: Some(job), ..self }
    }

    /// The number of jobs at most. Default: 10.
    pub fn jobs(self, most: u32) -> Self {
        Self { jobs: most, ..self }
    }

    /// Ends the rehearsal after this time; the handler that runs then is dropped. Row locks that
    /// its writes have taken are kept as long, and workers wait for them. Default: 30 s.
    pub fn within(self, limit: Duration) -> Self {
        Self { within: limit, ..self }
    }
}

/// The report of a rehearsal. Its `Display` tells it in some lines.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RehearsalReport {
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// The jobs that were run, in order. The last one may not have succeeded: those behind it would
    /// wait, or meet what it has left undone.
    pub jobs: Vec<RehearsedJob>,
    /// Whether everything was rolled back. If not, a handler has ended the transaction by hand, and
    /// what it committed stays.
    pub rolled_back: bool,
    /// Whether jobs are left that were not run.
    pub more: bool,
}

/// The part of the report about one job.
///
/// Its `Debug` leaves the output out, its `Serialize` does not.
#[derive(Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RehearsedJob {
    /// The job.
    pub id: i64,
    /// Its kind, as the producer named it.
    pub name: Option<String>,
    /// The number that its next attempt will have.
    pub attempt: u32,
    /// How the attempt would have ended.
    pub ended_as: EndedAs,
    /// The handler's output, if it would have succeeded.
    pub output: Option<serde_json::Value>,
    /// The failure, if it would have failed.
    pub failure: Option<Failure>,
    /// The time until it would run again. In JSON: seconds.
    #[serde(serialize_with = "optional_seconds")]
    pub again_in: Option<Duration>,
    /// The rows that it has written, by table. Writes of a failed attempt were undone before the
    /// end of the rehearsal, as a worker would have done.
    pub writes: Vec<TableWrites>,
    /// The number of jobs that it has enqueued in the transaction.
    pub enqueued: u64,
    /// Calls that would have written beside the transaction, and did not: rests.
    pub suppressed: Vec<String>,
    /// The time that it took. In JSON: seconds.
    #[serde(serialize_with = "seconds")]
    pub took: Duration,
}

impl fmt::Debug for RehearsedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RehearsedJob")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("attempt", &self.attempt)
            .field("ended_as", &self.ended_as)
            .field("failure", &self.failure)
            .field("again_in", &self.again_in)
            .field("writes", &self.writes)
            .field("enqueued", &self.enqueued)
            .field("suppressed", &self.suppressed)
            .field("took", &self.took)
            .finish_non_exhaustive()
    }
}

/// The rows of one table that a job has written, by the transaction's own statistics. Nothing is
/// counted if the server's `track_counts` is off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TableWrites {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub table: String,
    /// Rows that were inserted.
    pub inserted: u64,
    /// Rows that were updated.
    pub updated: u64,
    /// Rows that were deleted.
    pub deleted: u64,
}

impl fmt::Display for TableWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}:", self.schema, self.table)?;
        let counts =
            [(self.inserted, "inserted"), (self.updated, "updated"), (self.deleted, "deleted")];
        let counts = counts.iter().filter(|(rows, _)| *rows > 0);
        for (n, (rows, how)) in counts.enumerate() {
            write!(f, "{} {rows} {how}", if n > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for RehearsedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.id)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        write!(f, ", attempt {}: would ", self.attempt)?;
        match self.ended_as {
            EndedAs::Succeeded => write!(f, "succeed")?,
            EndedAs::Retried => write!(f, "fail and be tried again")?,
            EndedAs::Snoozed => write!(f, "be put off")?,
            EndedAs::Failed => write!(f, "fail for good")?,
            EndedAs::Expired => write!(f, "end without an attempt, as it has expired")?,
            EndedAs::Cancelled => write!(f, "be cancelled")?,
            EndedAs::Ignored => write!(f, "be ignored")?,
            EndedAs::Released => write!(f, "still run: the time of the rehearsal is over")?,
        }
        if let Some(again_in) = self.again_in {
            write!(f, " in {again_in:.1?}")?;
        }
        write!(f, " (took {:.1?})", self.took)?;
        if let Some(failure) = &self.failure {
            write!(f, "\n    {}", failure.message)?;
            for cause in &failure.chain {
                write!(f, ": {cause}")?;
            }
        }
        for table in &self.writes {
            write!(f, "\n    {table}")?;
        }
        if self.enqueued > 0 {
            write!(f, "\n    {} enqueued", counted(self.enqueued, "job"))?;
        }
        for call in &self.suppressed {
            write!(f, "\n    not done: {call}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RehearsalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = counted(self.jobs.len() as u64, "job");
        writeln!(f, "rehearsed {count} of group {:?} of queue {:?}", self.group, self.queue)?;
        for job in &self.jobs {
            writeln!(f, "  {job}")?;
        }
        if self.more {
            writeln!(f, "  more jobs are behind")?;
        }
        if self.rolled_back {
            write!(f, "rolled back: all writes of the job's transaction. ")?;
        } else {
            write!(f, "NOT ROLLED BACK: a handler ended the job's transaction itself. ")?;
        }
        write!(
            f,
            "Not undone: calls to other services, writes on other connections, and numbers taken from sequences"
        )
    }
}

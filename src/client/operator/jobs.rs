//! Requests about one job or one halted group: cancel, retry, skip, unhalt.

use std::fmt;

use serde::Serialize;
use sqlx::PgExecutor;

use crate::client::cancel::{Cancelled, cancel, refusal};
use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::job::JobStatus;
use crate::job::name;
use crate::job::words;
use crate::store::RequestReport;

/// The result of [`Operator::retry`]; prints as the rest of a sentence about the job: `job 1 is …`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Retried {
    /// The number of later jobs of the group that have already begun. The retried job was meant to
    /// run before them. They are counted among the jobs that retention still keeps: the 200,000
    /// behind the retried job.
    pub overtaken: u64,
    /// The queue that the job failed in, if it was given up in a dead-letter queue: it waits there
    /// again. [`redrive_jobs`](Operator::redrive_jobs) moves it back.
    pub dead_letter_of: Option<String>,
}

impl fmt::Display for Retried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(queue) = &self.dead_letter_of {
            return write!(
                f,
                "a dead letter of queue {queue:?} again, and waits in its dead-letter queue until \
                 it is redriven"
            );
        }
        let overtaken = words::overtaken(self.overtaken);
        write!(f, "queued again in its old place, with all attempts anew; {overtaken}")
    }
}

/// The advice about a job that should be aborted and does not run.
pub(crate) const ABORT_ADVICE: &str =
    "only a job that runs can be; skip or cancel gives up one that waits";

impl Operator {
    /// Cancels a job that has not ended, as [`Client::cancel`](crate::Client::cancel) does, and
    /// records it.
    ///
    /// # Errors
    /// As [`Client::cancel`](crate::Client::cancel).
    pub async fn cancel(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Cancelled, ControlError> {
        cancel(self.store(), executor, job, self.acting()?).await
    }

    /// Queues a failed or cancelled job again, with all attempts anew. It keeps its id, and so runs
    /// next in its group. A halt of the group by this job ends. An expiry that has passed is
    /// cleared. A dead letter that was discarded in a dead-letter queue waits there again.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is neither failed nor
    /// cancelled; [`ControlError::Busy`] if another transaction is changing it;
    /// [`ControlError::Parked`] if others were parked with it; [`ControlError::DeadLetter`] if it
    /// waits in a dead-letter queue; [`ControlError::Moved`] if it was moved to another queue;
    /// [`ControlError::Database`].
    pub async fn retry(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Retried, ControlError> {
        let report = self.store().retry(executor, job, self.acting()?).await?;
        if report.parked {
            return Err(ControlError::Parked { id: job });
        }
        if let Some((queue, moved_as)) = report.moved {
            return Err(ControlError::Moved { id: job, queue, moved_as });
        }
        if !report.done {
            check_no_dead_letter(&report, job, "retried")?;
        }
        let dead = [JobStatus::Failed, JobStatus::Cancelled];
        check_done(&report, job, &dead, "retried", "only a failed or cancelled job can be")?;
        let RequestReport { overtaken, dead_letter_of, .. } = report;
        Ok(Retried { overtaken, dead_letter_of })
    }

    /// Gives a job up, so that its group goes on: a queued job ends as `failed`; a failed job stays
    /// failed, and the halt of its group ends. If it halts nothing, nothing changes, and no
    /// operation is written down.
    ///
    /// # Errors
    /// [`ControlError::HaltedBy`] if another job has halted its group: that is the one to skip.
    /// [`ControlError::DeadLetter`] if it waits in a dead-letter queue: it is given up already, and
    /// [`discard_jobs`](Self::discard_jobs) ends it.
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is running or has ended
    /// otherwise; [`ControlError::Busy`] if a worker or another transaction has it for a moment;
    /// [`ControlError::Database`].
    pub async fn skip(&self, executor: impl PgExecutor<'_>, job: i64) -> Result<(), ControlError> {
        let report = self.store().skip(executor, job, self.acting()?).await?;
        if let Some(by) = report.halted_by {
            return Err(ControlError::HaltedBy { id: job, by });
        }
        check_no_dead_letter(&report, job, "skipped")?;
        if report.status == Some(JobStatus::Failed) && !report.busy {
            return Ok(());
        }
        let skippable = [JobStatus::Queued, JobStatus::Failed];
        check_done(&report, job, &skippable, "skipped", "abort or cancel a running one instead")
    }

    /// Makes a queued job due at once, if it is delayed or waits for its retry. It keeps its place:
    /// jobs of its group before it still come first.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is not queued;
    /// [`ControlError::Busy`] if a worker or another transaction has it for a moment;
    /// [`ControlError::Database`].
    pub async fn run_now(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<(), ControlError> {
        let report = self.store().run_now(executor, job, self.acting()?).await?;
        let advice = "only a queued job can be; a failed or cancelled one can be retried";
        check_done(&report, job, &[JobStatus::Queued], "made due", advice)
    }

    /// Ends the run of a job, under both holds: its worker drops the handler and goes on with other
    /// jobs. Jobs that were claimed with it, in one turn, go back. The attempt counts. The job runs
    /// again 1.75 s later if it has one left, else it ends as
    /// a job does whose worker was lost. [`cancel`](Self::cancel) asks the handler instead.
    ///
    /// A worker notices within 0.5 s. Without a [presence](crate::ProcessorBuilder::presence) one
    /// notices under a lease only when it extends that, and the job waits for the lease's end. A
    /// receiver is not told; its receipt is stale.
    ///
    /// A session that holds the job is terminated. The role needs the right to do so, and a
    /// rollback does not undo it.
    ///
    /// A handler may abort its own job on another connection, not through
    /// [`ActiveJob::tx`](crate::ActiveJob::tx): return an error instead.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is not started;
    /// [`ControlError::MayNotAbort`]; [`ControlError::Busy`] if another transaction has its row and
    /// does not end; [`ControlError::Database`].
    pub async fn abort(&self, executor: impl PgExecutor<'_>, job: i64) -> Result<(), ControlError> {
        let report = self.store().abort(executor, job, self.acting()?).await?;
        if let Some(pid) = report.forbidden {
            return Err(ControlError::MayNotAbort { id: job, pid });
        }
        check_done(&report, job, &[JobStatus::Started], "aborted", ABORT_ADVICE)
    }

    /// Ends a halt: the group goes on with its next job. The job that halted it stays a dead
    /// letter. [`resume_group`](Self::resume_group) ends a pause.
    ///
    /// # Errors
    /// [`ControlError::NotHalted`], also while jobs of the group are being parked;
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn unhalt_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<(), ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        if self.store().unhalt_group(executor, queue, group, self.acting()?).await? {
            return Ok(());
        }
        Err(ControlError::NotHalted { queue: queue.to_owned(), group: group.to_owned() })
    }
}

/// Fails if the job was left alone because it waits in a dead-letter queue.
fn check_no_dead_letter(
    report: &RequestReport,
    id: i64,
    request: &'static str,
) -> Result<(), ControlError> {
    match &report.dead_letter_of {
        Some(queue) => Err(ControlError::DeadLetter { id, queue: queue.clone(), request }),
        None => Ok(()),
    }
}

/// Fails if a request was not carried out. An allowed one that was not done met a locked row.
fn check_done(
    report: &RequestReport,
    job: i64,
    allowed: &[JobStatus],
    request: &'static str,
    advice: &'static str,
) -> Result<(), ControlError> {
    match report.status {
        Some(_) if report.done => Ok(()),
        Some(status) if allowed.contains(&status) => Err(ControlError::Busy { id: job }),
        status => Err(refusal(job, status, request, advice)),
    }
}

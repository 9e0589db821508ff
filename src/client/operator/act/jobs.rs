//! Changes of one job.

use sqlx::PgConnection;

use crate::client::cancel::{Cancelled, refusal};
use crate::client::operator::jobs::ABORT_ADVICE;
use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::effect::Effect;
use crate::job::explanation::JobExplanation;
use crate::job::facts::Facts;
use crate::job::job::JobStatus;
use crate::store::Subject;

impl Operator {
    pub(super) async fn act_cancel(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Effect, ControlError> {
        let after = self.after(conn, job).await?;
        let cancelled = self.cancel(&mut *conn, job).await?;
        let state = match cancelled {
            Cancelled::Now => "cancelled",
            Cancelled::Requested => "requested",
        };
        let after = after.map(|after| format!("; {after}")).unwrap_or_default();
        Ok(Effect::new(format!("job {job} is {cancelled}{after}")).with("state", state))
    }

    pub(super) async fn act_retry(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Effect, ControlError> {
        let retried = self.retry(&mut *conn, job).await?;
        let next = retried.dead_letter_of.as_ref().map(|_| format!(" (redrive {job})"));
        let sentence = format!("job {job} is {retried}{}", next.unwrap_or_default());
        Ok(Effect::new(sentence).with_all(&retried))
    }

    pub(super) async fn act_skip(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Effect, ControlError> {
        let after = self.after(conn, job).await?;
        self.skip(&mut *conn, job).await?;
        let (group, after) = match after {
            Some(after) => (", and its group goes on", format!("; {after}")),
            None => ("", String::new()),
        };
        Ok(Effect::new(format!(
            "job {job} is given up{group}; it stays a dead letter, which a redrive would queue again, \
             and a discard end for good{after}"
        )))
    }

    pub(super) async fn act_run_now(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Effect, ControlError> {
        self.run_now(&mut *conn, job).await?;
        Ok(Effect::new(format!("job {job} is due now, and runs at its turn")))
    }

    pub(super) async fn act_abort(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Effect, ControlError> {
        self.abort(&mut *conn, job).await?;
        Ok(aborted(job))
    }

    /// Checks that the job runs. An abort ends a session, and a rollback does not undo that.
    pub(super) async fn preview_abort(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Effect, ControlError> {
        match self.client().job_status(&mut *conn, job).await? {
            Some(JobStatus::Started) => Ok(aborted(job)),
            status => Err(refusal(job, status, "aborted", ABORT_ADVICE)),
        }
    }

    /// Returns how many jobs wait after a job in its group, in words; `None`: it has no group. Read
    /// before the change: the group moves on by it.
    async fn after(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<Option<String>, ControlError> {
        let facts = self.store().facts(conn, Subject::Job(job)).await?;
        let Some(JobExplanation { behind, group, .. }) = facts.and_then(Facts::explain_job) else {
            // The change says why.
            return Ok(None);
        };
        Ok(group.map(|_| match behind.count {
            0 => String::from("no job waits after it"),
            1 => String::from("1 job waits after it"),
            _ => format!("{behind} jobs wait after it"),
        }))
    }
}

fn aborted(job: i64) -> Effect {
    Effect::new(format!(
        "the run of job {job} is ended, and its handler dropped; the attempt counts, and the job \
         runs again if it has one left"
    ))
}

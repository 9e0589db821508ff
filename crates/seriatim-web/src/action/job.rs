//! Actions about one job.

use seriatim::JobStatus;
use seriatim::admin::{self, Cancelled};

use crate::action::change::Change;
use crate::action::effect::{Effect, sentence};
use crate::error::WebError;

pub(crate) async fn cancel(change: &Change<'_>, job: i64) -> Result<Effect, WebError> {
    let behind = behind(change, job).await?;
    let mut tx = change.begin().await?;
    let cancelled = change.operator.cancel(&mut *tx, job).await?;
    let then = if cancelled == Cancelled::Requested { "then " } else { "" };
    change.end(tx, Effect::new(format!("Job {job} is {cancelled}; {then}{behind}."))).await
}

pub(crate) async fn retry(change: &Change<'_>, job: i64) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let retried = change.operator.retry(&mut *tx, job).await?;
    let message = format!("Job {job} is {retried}.");
    change.end(tx, Effect { overtaken: Some(retried.overtaken), ..Effect::new(message) }).await
}

pub(crate) async fn skip(change: &Change<'_>, job: i64) -> Result<Effect, WebError> {
    let behind = behind(change, job).await?;
    let mut tx = change.begin().await?;
    change.operator.skip(&mut *tx, job).await?;
    let skipped = sentence(&admin::Effect::Skipped { job }.to_string());
    change.end(tx, Effect::new(format!("{skipped}; {behind}."))).await
}

pub(crate) async fn run_now(change: &Change<'_>, job: i64) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    change.operator.run_now(&mut *tx, job).await?;
    change.end(tx, Effect::worded(&admin::Effect::DueNow { job })).await
}

/// Ends the run of a job. It ends a session, and a rollback does not undo that: a dry run only
/// checks that the job runs.
pub(crate) async fn abort(change: &Change<'_>, job: i64) -> Result<Effect, WebError> {
    if change.dry_run {
        let app = change.app;
        if app.client.job_status(&app.reads(), job).await? != Some(JobStatus::Started) {
            return Err(WebError::Refused(format!("Job {job} does not run.")));
        }
    } else {
        let mut tx = change.begin().await?;
        change.operator.abort(&mut *tx, job).await?;
        tx.commit().await?;
    }
    Ok(Effect::worded(&admin::Effect::Aborted { job }))
}

/// Returns the jobs behind a job, in words. Read before the action: afterwards the group has moved
/// on.
async fn behind(change: &Change<'_>, job: i64) -> Result<String, WebError> {
    let app = change.app;
    let Some(explained) = app.client.explain_job(&app.reads(), job).await? else {
        return Ok(String::new());
    };
    Ok(match (explained.behind.count, explained.group) {
        (0, Some(_)) => String::from("nothing is behind it"),
        (1, Some(_)) => String::from("1 job behind it goes on"),
        (_, Some(_)) => format!("{} jobs behind it go on", explained.behind),
        (_, None) => String::from("it has no group"),
    })
}

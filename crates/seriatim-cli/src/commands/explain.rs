//! `seriatim explain` and `seriatim lane`: why a job or a group is where it is.

use chrono::{DateTime, Utc};
use serde_json::json;
use seriatim::{Job, JobStatus};
use seriatim_sqs::MessageId;

use crate::args::{JobOrMessage, Lane, MOST_JOBS};
use crate::commands::groups::tries;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{explained, since, visible};
use crate::output::{json, json_line, line};
use crate::session::Session;

/// Explains a job in a few sentences.
pub(crate) async fn job(session: &Session, named: JobOrMessage) -> Result<(), Failure> {
    let id = match named {
        JobOrMessage::Job(id) => id,
        JobOrMessage::Message(message) => job_of(session, message).await?,
    };
    let explanation = session.client.explain_job(&session.pool, id).await?;
    let explanation = explanation.ok_or_else(|| no_such_job(id))?;
    if session.json() {
        let mut value = serde_json::to_value(&explanation)?;
        value["sentence"] = explanation.to_string().into();
        return json_line(&value);
    }
    let (queue, group) = (Some(&*explanation.queue), explanation.group.as_deref());
    let (sentence, advice) = (explanation.to_string(), explanation.advice());
    line(&visible(&explained(&sentence, advice.as_deref(), queue, group)))
}

/// Returns the job of a message. Its number alone is not enough: another job may have it after an
/// asynchronous failover.
async fn job_of(session: &Session, message: MessageId) -> Result<i64, Failure> {
    let id = message.job();
    let job = session.client.job(&mut *session.read().await?, id).await?;
    match job.filter(|job| message.is_of(job.id, job.created_at)) {
        Some(job) => Ok(job.id),
        None => Err(Failure::NothingMatched(format!(
            "there is no message {message} (it may have been deleted after its retention)"
        ))),
    }
}

pub(crate) fn no_such_job(id: i64) -> Failure {
    Failure::NothingMatched(format!(
        "there is no job {id} (it may have been deleted after its retention)"
    ))
}

/// Shows one group: its explanation, then its jobs in the order in which they run.
pub(crate) async fn lane(session: &Session, lane: &Lane) -> Result<(), Failure> {
    let Lane { queue, group, jobs: limit } = lane;
    let overview = session.client.group(&mut *session.read().await?, queue, group).await?;
    let explanation = session.client.explain_group(&session.pool, queue, group).await?;
    let one_more = limit.saturating_add(1);
    let mut jobs =
        session.client.group_jobs(&mut *session.read().await?, queue, group, one_more).await?;
    let shown = usize::try_from(*limit).unwrap_or(usize::MAX);
    let is_cut = jobs.len() > shown;
    jobs.truncate(shown);
    let sentence = explanation.to_string();
    if overview.is_none() && jobs.is_empty() {
        return Err(Failure::NothingMatched(sentence));
    }
    if session.json() {
        let jobs: Vec<_> =
            jobs.iter().map(|job| json::job(job, false)).collect::<Result<_, _>>()?;
        let lane = json!({
            "queue": queue, "group": group, "sentence": sentence, "overview": overview,
            "explanation": explanation, "jobs": jobs, "more": is_cut,
        });
        return json_line(&lane);
    }
    let advice = explanation.advice();
    line(&visible(&explained(&sentence, advice.as_deref(), Some(queue), Some(group))))?;
    if jobs.is_empty() {
        return Ok(());
    }
    let now = session.now().await?;
    let mut table = Table::new(&["#job", "status", "~name", "tries", "#age", "~note"]);
    for job in &jobs {
        table.row(row(job, now));
    }
    table.print()?;
    match is_cut {
        true if *limit < MOST_JOBS => line(&format!("more: --jobs {MOST_JOBS}")),
        true => line("there are more jobs"),
        false => Ok(()),
    }
}

fn row(job: &Job, now: DateTime<Utc>) -> [String; 6] {
    let error = job.error.as_ref().map(|error| error.message.clone());
    let note = match (job.status, error) {
        (JobStatus::Queued, error) if job.run_at > now => {
            let error = error.map(|error| format!(": {error}")).unwrap_or_default();
            format!("due {}{error}", since(job.run_at, now))
        }
        (JobStatus::Started, _) => {
            job.last_started_at.map(|time| format!("for {}", since(time, now))).unwrap_or_default()
        }
        (_, error) => error.unwrap_or_default(),
    };
    [
        job.id.to_string(),
        job.status.to_string(),
        job.name.clone().unwrap_or_default(),
        tries(job.attempt()),
        since(job.created_at, now),
        note,
    ]
}

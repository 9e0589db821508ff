//! A job as it is shown.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use seriatim::explain::{AttemptInfo, JobExplanation};
use seriatim::{AttemptRecord, Failure, Job, JobStatus, Progress};

use crate::app::App;
use crate::data::words::explained;
use crate::error::WebError;

/// A job; its data and result only if they may be shown.
#[derive(Debug, Serialize)]
pub(crate) struct JobView {
    pub(crate) id: i64,
    pub(crate) queue: String,
    /// The queue that it failed in: it came to its own as a dead letter.
    pub(crate) moved_from: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) status: JobStatus,
    pub(crate) name: Option<String>,
    pub(crate) limit_key: Option<String>,
    pub(crate) unique_key: Option<String>,
    pub(crate) replaced: u32,
    pub(crate) replaced_at: Option<DateTime<Utc>>,
    pub(crate) reference: Option<String>,
    pub(crate) priority: u8,
    pub(crate) attempts: u32,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) snoozes: u32,
    pub(crate) progress: Option<Progress>,
    pub(crate) checkpoint_at: Option<DateTime<Utc>>,
    /// The last attempt, and the number of those that count.
    pub(crate) attempt: AttemptInfo,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) expires_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) last_started_at: Option<DateTime<Utc>>,
    pub(crate) finished_at: Option<DateTime<Utc>>,
    pub(crate) error: Option<Failure>,
    pub(crate) history: Vec<AttemptRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Box<RawValue>>,
    pub(crate) content_type: Option<String>,
    pub(crate) payload_bytes: Option<usize>,
}

impl JobView {
    pub(crate) fn new(job: Job, show_data: bool) -> Self {
        // The text: a value would round numbers.
        let raw = |text: &str| RawValue::from_string(text.to_owned()).ok().filter(|_| show_data);
        Self {
            attempt: job.attempt(),
            data: raw(job.data_text()),
            result: job.result_text().and_then(raw),
            id: job.id,
            queue: job.queue,
            moved_from: job.moved_from,
            group: job.group,
            status: job.status,
            name: job.name,
            limit_key: job.limit_key,
            unique_key: job.unique_key,
            replaced: job.replaced,
            replaced_at: job.replaced_at,
            reference: job.reference,
            priority: job.priority,
            attempts: job.attempts,
            snoozes: job.snoozes,
            progress: job.progress,
            checkpoint_at: job.checkpoint_at,
            max_attempts: job.max_attempts,
            run_at: job.run_at,
            expires_at: job.expires_at,
            created_at: job.created_at,
            last_started_at: job.last_started_at,
            finished_at: job.finished_at,
            error: job.error,
            history: job.history,
            content_type: job.content_type,
            payload_bytes: job.payload.as_ref().filter(|_| show_data).map(Vec::len),
        }
    }

    /// Returns whether it is queued for a later time.
    pub(crate) fn is_delayed(&self) -> bool {
        self.status == JobStatus::Queued && self.run_at > Utc::now()
    }
}

/// A job, and why it is where it is.
#[derive(Debug, Serialize)]
pub(crate) struct JobDetail {
    pub(crate) job: JobView,
    pub(crate) sentence: String,
    pub(crate) explanation: Option<JobExplanation>,
    /// Its group is halted by it.
    pub(crate) halts_group: bool,
}

pub(crate) async fn job(app: &App, id: i64) -> Result<JobDetail, WebError> {
    let no_such_job = || {
        WebError::NotFound(format!(
            "There is no job {id}. It may have been deleted after its retention."
        ))
    };
    let job = app.client.job(&app.reads(), id).await?.ok_or_else(no_such_job)?;
    let explanation = app.client.explain_job(&app.reads(), id).await?;
    let halts_group = match &job.group {
        Some(group) if job.status == JobStatus::Failed => {
            let overview = app.client.group(&app.reads(), &job.queue, group).await?;
            overview.is_some_and(|group| group.halted_by == Some(id))
        }
        _ => false,
    };
    Ok(JobDetail {
        halts_group,
        job: JobView::new(job, app.config.show_data),
        sentence: explanation
            .as_ref()
            .map(|told| explained(&told.to_string(), told.advice().as_deref()))
            .unwrap_or_default(),
        explanation,
    })
}

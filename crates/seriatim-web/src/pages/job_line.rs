//! A job in a line, on several pages.

use seriatim::JobStatus;
use seriatim::explain::AttemptInfo;

use crate::data::{JobView, shown};
use crate::pages::url::lane_url;
use crate::pages::view::When;

/// A job in a line: in a list, or as a box.
pub(crate) struct JobLine {
    pub(crate) id: i64,
    /// `queued`, `delayed`, `started`, `retrying`, …: also its colour.
    pub(crate) state: &'static str,
    pub(crate) name: String,
    pub(crate) attempt: String,
    pub(crate) progress: Option<ProgressView>,
    pub(crate) created: When,
    pub(crate) due: When,
    pub(crate) queue: String,
    pub(crate) group: Option<(String, String)>,
    pub(crate) error: String,
}

/// How far a job is.
pub(crate) struct ProgressView {
    pub(crate) percent: u8,
    pub(crate) words: String,
    /// Its job runs: the page reads itself anew more often.
    pub(crate) moves: bool,
}

impl JobLine {
    pub(crate) fn new(job: &JobView) -> Self {
        let state = match job.status {
            JobStatus::Queued if job.is_delayed() && job.attempts > 0 => "retrying",
            JobStatus::Queued if job.is_delayed() => "delayed",
            status => status.as_str(),
        };
        Self {
            id: job.id,
            state,
            name: job.name.as_deref().map(shown).unwrap_or_default(),
            attempt: attempt(job.attempt),
            progress: job.progress.as_ref().map(|progress| ProgressView {
                percent: progress.percent,
                words: shown(&progress.to_string()),
                moves: job.status == JobStatus::Started,
            }),
            created: When::new(job.created_at),
            due: When::new(job.run_at),
            queue: shown(&job.queue),
            group: job.group.as_ref().map(|group| (lane_url(&job.queue, group), shown(group))),
            error: job.error.as_ref().map(|error| shown(&error.message)).unwrap_or_default(),
        }
    }
}

/// Returns the attempts so far, with the limit if there is one.
pub(crate) fn attempt(info: AttemptInfo) -> String {
    if info.attempt == 0 { String::from("no attempt yet") } else { info.to_string() }
}

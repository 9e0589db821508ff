//! `/job?id=`: one job, why it is where it is, and its attempts.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use chrono::Utc;
use serde::Deserialize;
use seriatim::AttemptRecord;
use seriatim::explain::Reason;

use crate::action::Button;
use crate::data::{self, JobDetail, Shared, shown, span};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::indented::indented;
use crate::pages::job_line::JobLine;
use crate::pages::url::{lane_url, letters_url, queue_url};
use crate::pages::view::When;
use crate::timeline::{Timeline, timeline};

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/job", get(show))
}

#[derive(Deserialize)]
struct JobQuery {
    id: i64,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    job: JobLine,
    sentence: String,
    queue: String,
    queue_url: String,
    failed_in: Option<(String, String)>,
    lane: Option<(String, String)>,
    limit_key: Option<String>,
    unique_key: Option<String>,
    replaced: Option<(u32, When)>,
    reference: Option<String>,
    snoozes: u32,
    reported: Option<When>,
    checkpoint: Option<When>,
    priority: u8,
    created: When,
    due: When,
    started: Option<When>,
    finished: Option<When>,
    expires: Option<When>,
    error: Option<(String, Vec<String>)>,
    attempts: Vec<AttemptView>,
    timeline: Timeline,
    show_data: bool,
    data: String,
    result: Option<String>,
    payload: Option<String>,
    buttons: Vec<Button>,
}

async fn show(visit: Visit, query: Asked<JobQuery>) -> Shown {
    let Query(JobQuery { id }) = query?;
    visit
        .show(async || {
            let JobDetail { job, sentence, explanation, halts_group } =
                data::job(&visit.app, id).await?;
            let parked_with_it = explanation.is_some_and(|explanation| {
                matches!(explanation.reason, Reason::Ended { parked: true, .. })
            });
            let error = job.error.as_ref().map(|error| {
                (shown(&error.message), error.chain.iter().map(|text| shown(text)).collect())
            });
            let main = JobPage {
                sentence: shown(&sentence),
                queue: shown(&job.queue),
                queue_url: queue_url(&job.queue),
                failed_in: job.moved_from.as_ref().map(|queue| (letters_url(queue), shown(queue))),
                lane: job.group.as_ref().map(|group| (lane_url(&job.queue, group), shown(group))),
                limit_key: job.limit_key.as_deref().map(shown),
                unique_key: job.unique_key.as_deref().map(shown),
                replaced: job.replaced_at.map(|at| (job.replaced, When::new(at))),
                reference: job.reference.as_deref().map(shown),
                snoozes: job.snoozes,
                reported: job.progress.as_ref().map(|progress| When::new(progress.at)),
                checkpoint: job.checkpoint_at.map(When::new),
                priority: job.priority,
                created: When::new(job.created_at),
                due: When::new(job.run_at),
                started: job.last_started_at.map(When::new),
                finished: job.finished_at.map(When::new),
                expires: job.expires_at.map(When::new),
                error,
                attempts: job.history.iter().map(AttemptView::new).collect(),
                timeline: timeline([&job], Utc::now()),
                show_data: visit.app.config.show_data,
                data: job.data.as_ref().map(|json| indented(json.get())).unwrap_or_default(),
                result: job.result.as_ref().map(|json| indented(json.get())),
                payload: job.payload_bytes.map(|bytes| {
                    let kind = job.content_type.as_deref().unwrap_or("no content type");
                    format!("{bytes} raw bytes ({})", shown(kind))
                }),
                buttons: visit.buttons().job(&job, parked_with_it, halts_group).made(),
                job: JobLine::new(&job),
            };
            Ok((format!("Job {id}"), main.render()?))
        })
        .await
}

/// An attempt that did not succeed.
pub(crate) struct AttemptView {
    pub(crate) number: u32,
    pub(crate) began: Option<When>,
    pub(crate) took: String,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl AttemptView {
    pub(crate) fn new(record: &AttemptRecord) -> Self {
        let took = record.started_at.map(|start| (record.finished_at - start).num_milliseconds());
        let kind = serde_json::to_value(record.kind).unwrap_or_default();
        Self {
            number: record.attempt,
            began: record.started_at.map(When::new),
            took: took.map(span).unwrap_or_default(),
            kind: kind.as_str().unwrap_or_default().replace('_', " "),
            message: record.message.as_deref().map(shown).unwrap_or_default(),
        }
    }
}

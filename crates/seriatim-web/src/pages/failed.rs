//! `/failed`: dead letters, by a filter.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use seriatim::admin::FailedJob;

use crate::action::Button;
use crate::data::{self, LetterFilter, Shared, shown};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::url::{encode, field, lane_url, queue_url};
use crate::pages::view::{Choice, When, choices};

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/failed", get(show))
}

const WITHIN: [(&str, &str); 4] = [
    ("", "any time"),
    ("hour", "the last hour"),
    ("day", "the last day"),
    ("week", "the last week"),
];

#[derive(Template)]
#[template(path = "failed.html")]
struct FailedPage {
    queue: String,
    group: String,
    name: String,
    error: String,
    about: String,
    within: Vec<Choice>,
    filtered: bool,
    rows: Vec<LetterRow>,
    next: Option<String>,
    buttons: Vec<Button>,
}

async fn show(visit: Visit, filter: Asked<LetterFilter>) -> Shown {
    let Query(filter) = filter?;
    visit
        .show(async || {
            let letters = data::failed(&visit.app, &filter).await?;
            let LetterFilter { queue, group, name, error, within, .. } = &filter;
            let main = FailedPage {
                within: choices(&WITHIN, within),
                filtered: !filter.is_empty(),
                rows: letters.jobs.iter().map(LetterRow::new).collect(),
                queue: field(queue),
                group: field(group),
                name: field(name),
                error: field(error),
                about: filter.about(),
                next: letters.next.map(|next| next_url(&filter, next)),
                buttons: visit.buttons().failed(&filter).made(),
            };
            Ok((String::from("Dead letters"), main.render()?))
        })
        .await
}

/// Returns the address of the page behind a job.
fn next_url(filter: &LetterFilter, after: i64) -> String {
    let LetterFilter { queue, group, name, error, within, .. } = filter;
    format!(
        "failed?queue={}&group={}&name={}&error={}&within={}&after={after}",
        encode(queue),
        encode(group),
        encode(name),
        encode(error),
        encode(within),
    )
}

/// A dead letter in a list.
pub(crate) struct LetterRow {
    pub(crate) id: i64,
    pub(crate) queue: String,
    pub(crate) group: Option<(String, String)>,
    pub(crate) name: String,
    pub(crate) reference: String,
    pub(crate) attempts: u32,
    pub(crate) failed: Option<When>,
    pub(crate) error: String,
    /// The dead-letter queue that it waits in, and its address.
    pub(crate) dead_letter_queue: Option<(String, String)>,
    /// Others are parked with it, and go with it: it cannot be picked.
    pub(crate) parked: bool,
    pub(crate) parked_url: String,
}

impl LetterRow {
    pub(crate) fn new(job: &FailedJob) -> Self {
        Self {
            id: job.id,
            queue: shown(&job.queue),
            group: job.group.as_ref().map(|group| (lane_url(&job.queue, group), shown(group))),
            name: job.name.as_deref().map(shown).unwrap_or_default(),
            reference: job.reference.as_deref().map(shown).unwrap_or_default(),
            attempts: job.attempts,
            failed: job.finished_at.map(When::new),
            error: job.error.as_ref().map(|error| shown(&error.message)).unwrap_or_default(),
            dead_letter_queue: job
                .dead_letter_queue
                .as_ref()
                .map(|queue| (queue_url(queue), shown(queue))),
            parked: job.parked,
            parked_url: format!("parked?queue={}", encode(&job.queue)),
        }
    }
}

//! `/batches`: jobs whose end starts a follow-up.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use serde::Deserialize;
use seriatim::admin::Batch;

use crate::action::Button;
use crate::data::{self, Shared, shown};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::url::{lane_url, queue_url};
use crate::pages::view::{When, bounded};

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/batches", get(show))
}

#[derive(Deserialize)]
pub(crate) struct BatchQuery {
    /// The batch before which the list begins.
    pub(crate) before: Option<i64>,
    /// Also those that have ended or were abandoned.
    #[serde(default)]
    pub(crate) all: bool,
}

#[derive(Template)]
#[template(path = "batches.html")]
struct Batches {
    rows: Vec<BatchRow>,
    all: bool,
    next: Option<i64>,
}

async fn show(visit: Visit, query: Asked<BatchQuery>) -> Shown {
    let Query(BatchQuery { before, all }) = query?;
    visit
        .show(async || {
            let batches = data::batches(&visit.app, before, all).await?;
            let main = Batches {
                next: batches.last().filter(|_| batches.len() >= data::BATCHES).map(|one| one.id),
                rows: batches.iter().map(|one| BatchRow::new(&visit, one)).collect(),
                all,
            };
            Ok((String::from("Batches"), main.render()?))
        })
        .await
}

/// A batch in a list.
struct BatchRow {
    id: i64,
    name: String,
    state: &'static str,
    sentence: String,
    unfinished: String,
    succeeded: String,
    unsuccessful: String,
    opened: When,
    queue: (String, String),
    group: Option<(String, String)>,
    follow_up: Option<i64>,
    buttons: Vec<Button>,
}

impl BatchRow {
    fn new(visit: &Visit, batch: &Batch) -> Self {
        let Batch { id, name, queue, group, .. } = batch;
        Self {
            id: *id,
            name: shown(name),
            state: batch.state.as_str(),
            sentence: shown(&batch.to_string()),
            unfinished: bounded(batch.unfinished),
            succeeded: bounded(batch.succeeded),
            unsuccessful: bounded(batch.unsuccessful),
            opened: When::new(batch.opened_at),
            queue: (queue_url(queue), shown(queue)),
            group: group.as_ref().map(|group| (lane_url(queue, group), shown(group))),
            follow_up: batch.follow_up,
            buttons: visit.buttons().batch(batch).made(),
        }
    }
}

//! `/queue?name=`: the groups of a queue, and its move tasks.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;

use crate::data::{self, LaneFilter, Shared, shown};
use crate::error::WebError;
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::hour::HourView;
use crate::pages::lane_row::LanesView;
use crate::pages::move_tasks::Moves;
use crate::pages::queues::QueueRow;
use crate::pages::url::{encode, field};
use crate::pages::view::{Choice, choices};

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/queue", get(show))
}

const STATES: [(&str, &str); 9] = [
    ("", "any state"),
    ("running", "running"),
    ("lapsed", "lapsed"),
    ("ready", "ready"),
    ("delayed", "delayed"),
    ("gated", "gated"),
    ("halted", "halted"),
    ("paused", "paused"),
    ("parked", "parked"),
];
const SORTS: [(&str, &str); 4] = [
    ("", "stopped, then waiting"),
    ("name", "by name"),
    ("wait", "longest wait first"),
    ("depth", "deepest first"),
];

#[derive(Template)]
#[template(path = "queue.html")]
struct Queue {
    about: QueueRow,
    hour: HourView,
    lanes: LanesView,
    moves: Moves,
    states: Vec<Choice>,
    sorts: Vec<Choice>,
    find: String,
    next: Option<String>,
    or_more: bool,
    looked_at: &'static str,
    /// The lanes are those that call for attention first.
    first: bool,
    filtered: bool,
}

async fn show(visit: Visit, filter: Asked<LaneFilter>) -> Shown {
    let Query(filter) = filter?;
    let app = &visit.app;
    visit
        .show(async || {
            let overview = data::queue(app, &filter.name).await?.ok_or_else(|| {
                WebError::NotFound(format!(
                    "There is no queue {:?}: nothing was enqueued to it yet, or all is gone.",
                    filter.name
                ))
            })?;
            let first = filter.is_plain();
            let (groups, next, or_more) = if first {
                let lanes = data::first_lanes(app, &overview).await?;
                (lanes.groups, None, lanes.or_more)
            } else {
                let page = data::groups(app, &filter).await?;
                (page.groups, page.next, page.or_more)
            };
            let rows = data::rows(app, &filter.name, groups).await?;
            let main = Queue {
                hour: HourView::read(&visit, &filter.name).await?,
                moves: Moves::read(&visit, &overview).await?,
                about: QueueRow::new(&visit, overview)
                    .with(visit.buttons().purge_everything(&filter.name)),
                lanes: LanesView::new(&visit, &rows, false),
                states: choices(&STATES, &filter.state),
                sorts: choices(&SORTS, &filter.sort),
                filtered: !filter.state.is_empty() || !filter.find.is_empty(),
                find: field(&filter.find),
                next: next.map(|next| next_url(&filter, &next)),
                or_more,
                looked_at: filter.to_filter()?.looked_at(),
                first,
            };
            Ok((format!("Queue {}", shown(&filter.name)), main.render()?))
        })
        .await
}

/// Returns the address of the page behind a group.
fn next_url(filter: &LaneFilter, after: &str) -> String {
    format!(
        "queue?name={}&state={}&sort={}&find={}&after={}",
        encode(&filter.name),
        encode(&filter.state),
        encode(&filter.sort),
        encode(&filter.find),
        encode(after)
    )
}

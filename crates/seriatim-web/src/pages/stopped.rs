//! `/stopped`: what stands until an operator acts.

use askama::Template;
use axum::Router;
use axum::routing::get;

use crate::action::Button;
use crate::data::{self, Shared, Stopped, shown};
use crate::pages::frame::{Shown, Visit};
use crate::pages::lane_row::LanesView;
use crate::pages::nodes::NodeRow;
use crate::pages::url::queue_url;
use crate::pages::view::When;

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/stopped", get(show))
}

#[derive(Template)]
#[template(path = "stopped.html")]
pub(crate) struct StoppedPage {
    pub(crate) heading: &'static str,
    pub(crate) lead: &'static str,
    pub(crate) nothing: &'static str,
    pub(crate) queues: Vec<QueueView>,
    pub(crate) orphaned: Vec<NodeRow>,
    pub(crate) lanes: LanesView,
    pub(crate) or_more: bool,
}

/// A queue that stands as a whole.
pub(crate) struct QueueView {
    queue: String,
    url: String,
    state: &'static str,
    since: When,
    why: String,
    buttons: Vec<Button>,
}

impl StoppedPage {
    pub(crate) fn new(visit: &Visit, stopped: Stopped) -> Self {
        let unserved = stopped.unserved.into_iter().map(|unserved| QueueView {
            url: queue_url(&unserved.queue),
            state: "unserved",
            since: When::new(unserved.since),
            why: String::from(
                "No living processor or receiver serves this queue, and its work is due. Start the \
                 program that serves it. If one runs, compare the queue's name there, as the nodes \
                 list it, with the name where jobs are enqueued.",
            ),
            buttons: Vec::new(),
            queue: shown(&unserved.queue),
        });
        let paused = stopped.queues.into_iter().map(|paused| QueueView {
            url: queue_url(&paused.queue),
            state: "paused",
            since: When::new(paused.since),
            why: match (paused.reason.as_deref(), paused.until) {
                (None | Some(""), None) => String::from("No reason was given."),
                (reason, until) => {
                    let ends = |at| format!(" It ends by itself {}.", When::new(at).words);
                    let ends = until.map(ends).unwrap_or_default();
                    let by = paused.rested_by.map(|job| format!("Job {job} asked for a rest. "));
                    let by = by.unwrap_or_default();
                    format!("{by}{}{ends}", reason.map(shown).unwrap_or_default())
                }
            },
            buttons: visit.buttons().queue(&paused.queue, true, false, false).made(),
            queue: shown(&paused.queue),
        });
        let node = |node| NodeRow::new(visit, node);
        Self {
            heading: "Stopped",
            lead: "Queues that no processor or receiver serves, jobs whose worker is gone, and what is halted, \
                   paused or parked, the oldest first. None of these goes on by itself, unless it \
                   says so.",
            nothing: "Nothing is stopped.",
            queues: unserved.chain(paused).collect(),
            orphaned: stopped.orphaned.iter().map(node).collect(),
            lanes: LanesView::new(visit, &stopped.groups, true),
            or_more: stopped.or_more,
        }
    }
}

async fn show(visit: Visit) -> Shown {
    visit
        .show(async || {
            let main = StoppedPage::new(&visit, data::stopped(&visit.app).await?);
            Ok((String::from("Stopped"), main.render()?))
        })
        .await
}

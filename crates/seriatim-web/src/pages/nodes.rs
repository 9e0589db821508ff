//! `/nodes`: the processors.

use askama::Template;
use axum::Router;
use axum::routing::get;
use seriatim::explain::ProcessorInfo;

use crate::action::Button;
use crate::data::{self, Shared, shown};
use crate::pages::frame::{Shown, Visit};
use crate::pages::url::queue_url;
use crate::pages::view::When;

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/nodes", get(show))
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct Nodes {
    nodes: Vec<NodeRow>,
    overridden: Vec<String>,
}

async fn show(visit: Visit) -> Shown {
    visit
        .show(async || {
            let nodes = data::nodes(&visit.app).await?;
            let overridden = data::overridden(&visit.app).await?;
            let main = Nodes {
                nodes: nodes.iter().map(|node| NodeRow::new(&visit, node)).collect(),
                overridden: overridden.iter().map(|sentence| shown(sentence)).collect(),
            };
            Ok((String::from("Nodes"), main.render()?))
        })
        .await
}

/// A processor in a list.
pub(crate) struct NodeRow {
    pub(crate) node: String,
    pub(crate) process: String,
    /// `alive`, `silent` or `gone`.
    pub(crate) state: &'static str,
    /// The queues that it serves, each with its address; `None`: it does not say.
    pub(crate) queues: Option<Vec<(String, String)>>,
    pub(crate) started: Option<When>,
    pub(crate) seen: Option<When>,
    pub(crate) buttons: Vec<Button>,
}

impl NodeRow {
    pub(crate) fn new(visit: &Visit, processor: &ProcessorInfo) -> Self {
        let host = processor.host.as_deref().map(shown).unwrap_or_default();
        let pid = processor.pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
        let queue = |name: &String| (queue_url(name), shown(name));
        Self {
            node: shown(&processor.node),
            process: format!("{host}{pid}"),
            state: processor.state(),
            queues: processor.queues.as_ref().map(|queues| queues.iter().map(queue).collect()),
            started: processor.started_at.map(When::new),
            seen: processor.seen_at.map(When::new),
            buttons: if processor.alive {
                Vec::new()
            } else {
                visit.buttons().node(&processor.node).made()
            },
        }
    }
}

//! `/log`: what operators changed.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use serde::Deserialize;
use seriatim::admin::Operation;

use crate::data::{self, Shared, shown};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::url::{lane_url, queue_url};
use crate::pages::view::When;

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/log", get(show))
}

#[derive(Deserialize)]
pub(crate) struct LogQuery {
    /// The operation before which the page begins.
    pub(crate) before: Option<i64>,
}

#[derive(Template)]
#[template(path = "log.html")]
struct Log {
    operations: Vec<OperationRow>,
    next: Option<i64>,
}

async fn show(visit: Visit, query: Asked<LogQuery>) -> Shown {
    let Query(LogQuery { before }) = query?;
    visit
        .show(async || {
            let operations = data::operations(&visit.app, before).await?;
            let full = operations.len() >= usize::try_from(data::OPERATIONS).unwrap_or(usize::MAX);
            let main = Log {
                next: operations.last().filter(|_| full).map(|last| last.id),
                operations: operations.iter().map(OperationRow::new).collect(),
            };
            Ok((String::from("Log"), main.render()?))
        })
        .await
}

/// An operator's change, as a row of the log.
pub(crate) struct OperationRow {
    pub(crate) at: When,
    pub(crate) actor: String,
    pub(crate) action: String,
    pub(crate) queue: Option<(String, String)>,
    pub(crate) group: Option<(String, String)>,
    pub(crate) job: Option<i64>,
    pub(crate) reason: String,
    pub(crate) affected: u64,
}

impl OperationRow {
    pub(crate) fn new(operation: &Operation) -> Self {
        let queue = operation.queue.as_ref();
        let group = operation.group.as_ref().zip(queue);
        Self {
            at: When::new(operation.at),
            actor: shown(&operation.actor),
            action: shown(&operation.action).replace('_', " "),
            queue: queue.map(|queue| (queue_url(queue), shown(queue))),
            group: group.map(|(group, queue)| (lane_url(queue, group), shown(group))),
            job: operation.job,
            reason: operation.reason.as_deref().map(shown).unwrap_or_default(),
            affected: operation.affected,
        }
    }
}

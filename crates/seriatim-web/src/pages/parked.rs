//! `/parked`: the groups with parked jobs, in the form of the stopped ones.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use serde::Deserialize;

use crate::data::{self, Shared};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::stopped::StoppedPage;

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/parked", get(show))
}

/// A queue; without it all.
#[derive(Deserialize)]
pub(crate) struct QueueQuery {
    pub(crate) queue: Option<String>,
}

async fn show(visit: Visit, query: Asked<QueueQuery>) -> Shown {
    let Query(QueueQuery { queue }) = query?;
    visit
        .show(async || {
            let parked = data::parked(&visit.app, queue.as_deref()).await?;
            let main = StoppedPage {
                heading: "Parked",
                lead: "Jobs that stepped aside with one that failed. Redrive queues them again, in \
                       their original order; discard gives them up.",
                nothing: "Nothing is parked.",
                ..StoppedPage::new(&visit, parked)
            };
            Ok((String::from("Parked"), main.render()?))
        })
        .await
}

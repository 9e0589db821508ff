//! `/find?q=`: jobs, groups and queues, by what is known about them.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use serde::Deserialize;

use crate::data::{self, Shared, shown};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::job_line::JobLine;
use crate::pages::url::{lane_url, queue_url};

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/find", get(show))
}

#[derive(Deserialize)]
pub(crate) struct FindQuery {
    #[serde(default)]
    pub(crate) q: String,
}

#[derive(Template)]
#[template(path = "find.html")]
struct FoundPage {
    text: String,
    nothing: bool,
    queues: Vec<(String, String)>,
    groups: Vec<FoundGroup>,
    jobs: Vec<JobLine>,
    queues_left_out: usize,
}

struct FoundGroup {
    url: String,
    group: String,
    queue: String,
    state: &'static str,
}

async fn show(visit: Visit, query: Asked<FindQuery>) -> Shown {
    let Query(FindQuery { q }) = query?;
    let visit = visit.finding(&q);
    visit
        .show(async || {
            let found = data::find(&visit.app, &q).await?;
            let queue = |name: &String| (queue_url(name), shown(name));
            let main = FoundPage {
                text: shown(&q),
                nothing: found.is_empty(),
                queues: found.queues.iter().map(queue).collect(),
                groups: found
                    .groups
                    .iter()
                    .map(|found| FoundGroup {
                        url: lane_url(&found.queue, &found.group),
                        group: shown(&found.group),
                        queue: shown(&found.queue),
                        state: found.state,
                    })
                    .collect(),
                jobs: found.jobs.iter().map(JobLine::new).collect(),
                queues_left_out: found.queues_left_out,
            };
            Ok((format!("Find {}", shown(&q)), main.render()?))
        })
        .await
}

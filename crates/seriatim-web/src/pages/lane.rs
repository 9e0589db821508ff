//! `/lane?queue=&group=`: one group, its timeline and its jobs in order.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use chrono::Utc;
use serde::Deserialize;

use crate::action::Button;
use crate::data::{self, Shared, shown};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::job_line::JobLine;
use crate::pages::url::{encode, queue_url};
use crate::pages::view::{PauseView, When};
use crate::timeline::{Timeline, timeline};

/// The next jobs of a lane that its timeline draws.
const DRAWN: usize = 9;

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/lane", get(show))
}

#[derive(Deserialize)]
pub(crate) struct LaneQuery {
    pub(crate) queue: String,
    pub(crate) group: String,
}

#[derive(Template)]
#[template(path = "lane.html")]
struct LanePage {
    queue: String,
    queue_url: String,
    letters_url: String,
    group: String,
    state: &'static str,
    sentence: String,
    queue_paused: bool,
    unserved: Option<When>,
    paused: Option<PauseView>,
    halt_ends: Option<When>,
    timeline: Timeline,
    jobs: Vec<JobLine>,
    more: String,
    recent: Vec<JobLine>,
    parked: String,
    buttons: Vec<Button>,
}

async fn show(visit: Visit, query: Asked<LaneQuery>) -> Shown {
    let Query(LaneQuery { queue, group }) = query?;
    visit
        .show(async || {
            let lane = data::lane(&visit.app, &queue, &group).await?;
            let in_order = lane.halted_by.iter().chain(&lane.jobs);
            let overview = lane.overview.as_ref();
            let parked = overview.filter(|group| group.parked.count > 0);
            let main = LanePage {
                queue: shown(&queue),
                queue_url: queue_url(&queue),
                letters_url: format!("failed?queue={}&group={}", encode(&queue), encode(&group)),
                group: shown(&group),
                state: lane.state.as_str(),
                sentence: shown(&lane.sentence),
                queue_paused: lane.queue_paused,
                unserved: lane.queue_unserved_since.map(When::new),
                paused: overview.and_then(PauseView::of_group),
                halt_ends: overview.and_then(|group| group.halted_until).map(When::new),
                timeline: timeline(
                    lane.recent.iter().chain(in_order.clone().take(DRAWN)),
                    Utc::now(),
                ),
                recent: lane.recent.iter().rev().map(JobLine::new).collect(),
                jobs: in_order.map(JobLine::new).collect(),
                more: lane.more(),
                parked: parked.map(|group| group.parked.to_string()).unwrap_or_default(),
                buttons: visit.buttons().lane(&lane).made(),
            };
            Ok((format!("Lane {}", shown(&group)), main.render()?))
        })
        .await
}

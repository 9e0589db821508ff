//! `/schedules`: jobs at set times.

use askama::Template;
use axum::Router;
use axum::extract::Query;
use axum::routing::get;
use chrono::Utc;
use serde::Deserialize;
use seriatim::admin::StoredSchedule;

use crate::action::Button;
use crate::data::{self, Shared, shown};
use crate::pages::frame::{Asked, Shown, Visit};
use crate::pages::url::{encode, lane_url, queue_url};
use crate::pages::view::{PauseView, When};

/// How many due times are shown ahead.
const AHEAD: usize = 5;

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/schedules", get(show))
}

#[derive(Deserialize)]
pub(crate) struct ScheduleQuery {
    /// The name behind which the list begins.
    pub(crate) after: Option<String>,
}

#[derive(Template)]
#[template(path = "schedules.html")]
struct Schedules {
    rows: Vec<ScheduleRow>,
    next: Option<String>,
    set: Vec<Button>,
}

async fn show(visit: Visit, query: Asked<ScheduleQuery>) -> Shown {
    let Query(ScheduleQuery { after }) = query?;
    visit
        .show(async || {
            let mut schedules = data::schedules(&visit.app, after.as_deref()).await?;
            let full = schedules.len() > data::SCHEDULES;
            schedules.truncate(data::SCHEDULES);
            let main = Schedules {
                next: schedules.last().filter(|_| full).map(|last| encode(&last.name)),
                set: visit.buttons().set_schedule().made(),
                rows: schedules.iter().map(|one| ScheduleRow::new(&visit, one)).collect(),
            };
            Ok((String::from("Schedules"), main.render()?))
        })
        .await
}

/// A schedule in a list.
struct ScheduleRow {
    name: String,
    timing: String,
    queue: (String, String),
    group: Option<(String, String)>,
    /// The next due times; none if it is paused or its time is over.
    next: Vec<When>,
    last: Option<When>,
    last_job: Option<i64>,
    missed: String,
    overlap: String,
    paused: Option<PauseView>,
    buttons: Vec<Button>,
}

impl ScheduleRow {
    fn new(visit: &Visit, schedule: &StoredSchedule) -> Self {
        let StoredSchedule { name, queue, group, .. } = schedule;
        let paused = schedule
            .paused_at
            .map(|since| PauseView::new(since, schedule.pause_reason.as_deref(), None, None));
        // A timing that only another version can read is shown by its next time alone.
        let next = match schedule.next_fire {
            Some(_) if paused.is_some() => Vec::new(),
            Some(at) => schedule.next(AHEAD, Utc::now()).unwrap_or_else(|_| vec![at]),
            None => Vec::new(),
        };
        Self {
            name: shown(name),
            timing: shown(&schedule.timing.to_string()),
            queue: (queue_url(queue), shown(queue)),
            group: group.as_ref().map(|group| (lane_url(queue, group), shown(group))),
            next: next.into_iter().map(When::new).collect(),
            last: schedule.last_fire.map(When::new),
            last_job: schedule.last_job,
            missed: schedule.missed.to_string(),
            overlap: schedule.overlap.to_string(),
            paused,
            buttons: visit.buttons().schedule(schedule).made(),
        }
    }
}

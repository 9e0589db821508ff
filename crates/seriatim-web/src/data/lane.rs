//! A lane: one group with its jobs in order.

use chrono::{DateTime, Utc};
use futures::future::try_join_all;
use serde::Serialize;
use seriatim::Job;
use seriatim::admin::{GroupOverview, GroupState};
use seriatim::explain::GroupExplanation;

use crate::app::App;
use crate::data::JobView;
use crate::data::words::explained;
use crate::error::WebError;

/// The next jobs that a row shows.
const NEXT_IN_ROW: u32 = 6;
/// The next jobs that a lane's own page shows.
const NEXT_IN_LANE: u32 = 25;

/// The ended jobs that a lane's own page shows.
const RECENT: u32 = 8;

/// A group in a list of groups.
#[derive(Debug, Serialize)]
pub(crate) struct LaneRow {
    #[serde(flatten)]
    pub(crate) group: GroupOverview,
    pub(crate) queue: String,
    /// Why it is where it is.
    pub(crate) sentence: String,
    pub(crate) next: Vec<JobView>,
}

/// Returns each group with its sentence and its next jobs. Data is left out.
pub(crate) async fn rows(
    app: &App,
    queue: &str,
    groups: Vec<GroupOverview>,
) -> Result<Vec<LaneRow>, WebError> {
    try_join_all(groups.into_iter().map(async |group| {
        let explanation = app.client.explain_group(&app.reads(), queue, &group.group).await?;
        let next = app.client.group_jobs(&app.reads(), queue, &group.group, NEXT_IN_ROW).await?;
        Ok(LaneRow {
            sentence: explained(&explanation.to_string(), explanation.advice().as_deref()),
            queue: queue.to_owned(),
            next: views(next, false),
            group,
        })
    }))
    .await
}

fn views(jobs: Vec<Job>, show_data: bool) -> Vec<JobView> {
    jobs.into_iter().map(|job| JobView::new(job, show_data)).collect()
}

/// A group with its next jobs, and the job that stopped it.
#[derive(Debug, Serialize)]
pub(crate) struct Lane {
    pub(crate) queue: String,
    pub(crate) group: String,
    pub(crate) state: GroupState,
    /// `None`: it has nothing unfinished, parked, halted or paused.
    pub(crate) overview: Option<GroupOverview>,
    pub(crate) sentence: String,
    pub(crate) explanation: GroupExplanation,
    /// The failed job that halted it.
    pub(crate) halted_by: Option<JobView>,
    /// Its jobs that ended lately, in order, without the job that halted it.
    pub(crate) recent: Vec<JobView>,
    /// The first of its unfinished jobs, in order.
    pub(crate) jobs: Vec<JobView>,
    pub(crate) queue_paused: bool,
    pub(crate) group_paused: bool,
    /// Since when the queue has had due work that no living processor or receiver serves.
    pub(crate) queue_unserved_since: Option<DateTime<Utc>>,
}

impl Lane {
    /// Returns the number of unfinished jobs behind those that are listed, if that is known.
    pub(crate) fn more(&self) -> String {
        let Some(overview) = &self.overview else { return String::new() };
        let listed = u64::try_from(self.jobs.len()).unwrap_or(u64::MAX);
        match overview.depth.count.saturating_sub(listed) {
            0 => String::new(),
            more => format!("{more}{}", if overview.depth.or_more { " or more" } else { "" }),
        }
    }
}

pub(crate) async fn lane(app: &App, queue: &str, group: &str) -> Result<Lane, WebError> {
    let overview = app.client.group(&app.reads(), queue, group).await?;
    let explanation = app.client.explain_group(&app.reads(), queue, group).await?;
    let jobs = app.client.group_jobs(&app.reads(), queue, group, NEXT_IN_LANE).await?;
    let paused = app.client.paused_queue(&app.reads(), queue).await?;
    let unserved = crate::data::queue(app, queue).await?.and_then(|queue| queue.unserved_since());
    let halted_by = match overview.as_ref().and_then(|group| group.halted_by) {
        Some(id) => app.client.job(&app.reads(), id).await?,
        None => None,
    };
    let mut recent = app.client.recent_jobs(&app.reads(), queue, group, RECENT).await?;
    recent.retain(|job| halted_by.as_ref().is_none_or(|halting| halting.id != job.id));
    recent.reverse();
    let state = overview.as_ref().map_or(GroupState::Idle, |group| group.state);
    Ok(Lane {
        queue: queue.to_owned(),
        group: group.to_owned(),
        state,
        sentence: explained(&explanation.to_string(), explanation.advice().as_deref()),
        group_paused: overview.as_ref().is_some_and(|group| group.paused_at.is_some()),
        queue_unserved_since: unserved,
        explanation,
        halted_by: halted_by.map(|job| JobView::new(job, false)),
        recent: views(recent, false),
        jobs: views(jobs, false),
        queue_paused: paused.is_some(),
        overview,
    })
}

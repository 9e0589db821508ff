//! Work that stands until an operator acts: halted, paused and parked groups, paused queues, queues
//! that no processor or receiver serves, and claims of processors that are gone.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde::Serialize;
use seriatim::admin::{GroupFilter, GroupSort, GroupState, PausedQueue, QueueOverview};
use seriatim::explain::ProcessorInfo;

use crate::app::App;
use crate::data::{LaneRow, nodes, queues, rows};
use crate::error::WebError;

/// Bounds the queues with such groups that are looked at, and the groups of each state in a queue.
const QUEUES: usize = 50;
const GROUPS: u32 = 25;
/// Bounds the groups that are listed.
const LISTED: usize = 50;

/// The work that stands, the oldest first.
#[derive(Debug, Serialize)]
pub(crate) struct Stopped {
    pub(crate) queues: Vec<PausedQueue>,
    pub(crate) unserved: Vec<UnservedQueue>,
    /// Processors that are gone and whose claims nobody has taken over yet.
    pub(crate) orphaned: Vec<ProcessorInfo>,
    pub(crate) groups: Vec<LaneRow>,
    /// There are more groups than these.
    pub(crate) or_more: bool,
}

/// A queue with due work that no living processor or receiver serves.
#[derive(Debug, Serialize)]
pub(crate) struct UnservedQueue {
    pub(crate) queue: String,
    /// Since when work has been due.
    pub(crate) since: DateTime<Utc>,
}

/// Returns the work that stands in all queues.
pub(crate) async fn stopped(app: &App) -> Result<Stopped, WebError> {
    let states = [GroupState::Lapsed, GroupState::Halted, GroupState::Paused, GroupState::Parked];
    let all = queues(app).await?;
    let paused = all.iter().filter_map(|queue| queue.paused.clone()).collect();
    let unserved = all.iter().filter_map(|queue| {
        Some(UnservedQueue { queue: queue.queue.clone(), since: queue.unserved_since()? })
    });
    let mut unserved: Vec<_> = unserved.collect();
    unserved.sort_by_key(|queue| queue.since);
    let orphaned = nodes(app).await?.into_iter().filter(|node| !node.alive).collect();
    let all: Vec<_> = all.iter().collect();
    let (groups, or_more) = in_states(app, &all, &states).await?;
    Ok(Stopped { queues: paused, unserved, orphaned, groups, or_more })
}

/// Returns the groups with parked jobs of one queue, or of all.
pub(crate) async fn parked(app: &App, queue: Option<&str>) -> Result<Stopped, WebError> {
    let all = queues(app).await?;
    let asked = |overview: &&QueueOverview| queue.is_none_or(|queue| overview.queue == queue);
    let all: Vec<_> = all.iter().filter(asked).collect();
    let (groups, or_more) = in_states(app, &all, &[GroupState::Parked]).await?;
    let (queues, unserved, orphaned) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Stopped { queues, unserved, orphaned, groups, or_more })
}

async fn in_states(
    app: &App,
    queues: &[&QueueOverview],
    states: &[GroupState],
) -> Result<(Vec<LaneRow>, bool), WebError> {
    let has_some = |queue: &&&QueueOverview| states.iter().any(|&state| any(queue, state));
    let queues: Vec<_> = queues.iter().filter(has_some).collect();
    let mut or_more = queues.len() > QUEUES;
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for overview in queues.into_iter().take(QUEUES) {
        for &state in states.iter().filter(|&&state| any(overview, state)) {
            let filter = GroupFilter::default().state(state).sort(GroupSort::Wait).limit(GROUPS);
            let page = app.client.groups(&app.reads(), &overview.queue, &filter).await?;
            or_more |= page.or_more || page.next.is_some();
            for group in page.groups {
                // One that is paused, and halted or with parked jobs, is listed by each.
                let key = (overview.queue.clone(), group.group.clone());
                if seen.insert(key) {
                    found.push((overview.queue.clone(), group));
                }
            }
        }
    }
    found.sort_by_key(|(_, group)| group.stopped_at.unwrap_or(DateTime::<Utc>::MAX_UTC));
    or_more |= found.len() > LISTED;
    found.truncate(LISTED);
    let mut listed = Vec::with_capacity(found.len());
    for (queue, group) in found {
        listed.extend(rows(app, &queue, vec![group]).await?);
    }
    Ok((listed, or_more))
}

/// Returns whether a queue has a group in a state.
pub(crate) fn any(queue: &QueueOverview, state: GroupState) -> bool {
    let count = match state {
        GroupState::Running => queue.groups.running,
        GroupState::Lapsed => queue.groups.lapsed,
        GroupState::Halted => queue.groups.halted,
        GroupState::Paused => queue.groups.paused,
        _ => queue.groups.parked,
    };
    count.count > 0
}

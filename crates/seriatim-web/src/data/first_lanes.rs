//! The lanes that a queue's page shows first: what stands, what waits the longest, what runs.

use std::collections::HashSet;

use seriatim::admin::{GroupFilter, GroupOverview, GroupSort, GroupState, QueueOverview};

use crate::app::App;
use crate::data::any;
use crate::error::WebError;

/// The lanes that are shown.
const LANES: usize = 24;
/// Bounds the lanes of these that stand, if others wait or run.
const STOPPED: usize = 15;
/// The lanes of these that run, if so many do.
const RUNNING: usize = 5;

/// The lanes that call for attention first.
pub(crate) struct FirstLanes {
    pub(crate) groups: Vec<GroupOverview>,
    /// There are more lanes than these.
    pub(crate) or_more: bool,
}

/// Returns the lanes of a queue that stand, the oldest first; then those that wait, the longest
/// wait first; then those that run and those that are not due.
pub(crate) async fn first_lanes(app: &App, queue: &QueueOverview) -> Result<FirstLanes, WebError> {
    let limit = u32::try_from(LANES).unwrap_or(u32::MAX);
    let filter = || GroupFilter::default().sort(GroupSort::Wait).limit(limit);
    let read = async |filter: GroupFilter| {
        let page = app.client.groups(&app.reads(), &queue.queue, &filter).await?;
        Ok::<_, WebError>((page.groups, page.or_more || page.next.is_some()))
    };
    let states = [
        GroupState::Lapsed,
        GroupState::Halted,
        GroupState::Paused,
        GroupState::Parked,
        GroupState::Running,
    ];
    let (mut found, mut or_more) = (Vec::new(), false);
    for state in states.into_iter().filter(|&state| any(queue, state)) {
        let (groups, more) = read(filter().state(state)).await?;
        found.extend(groups);
        or_more |= more;
    }
    let (groups, more) = read(filter()).await?;
    found.extend(groups);
    or_more |= more;
    // One that is paused, and halted or with parked jobs, is listed by each.
    let mut seen = HashSet::new();
    found.retain(|group| seen.insert(group.group.clone()));
    let (groups, left) = in_order(&found);
    Ok(FirstLanes { groups, or_more: or_more || left })
}

/// Returns the lanes to show, in their order, and whether any is left out.
fn in_order(found: &[GroupOverview]) -> (Vec<GroupOverview>, bool) {
    let of = |states: &[GroupState]| -> Vec<GroupOverview> {
        found.iter().filter(|group| states.contains(&group.state)).cloned().collect()
    };
    let mut stopped =
        of(&[GroupState::Lapsed, GroupState::Halted, GroupState::Paused, GroupState::Parked]);
    stopped.sort_by_key(|group| (group.stopped_at.is_none(), group.stopped_at));
    let mut waiting = of(&[GroupState::Ready, GroupState::Gated]);
    waiting.sort_by_key(|group| group.due_at);
    let mut running = of(&[GroupState::Running]);
    running.sort_by_key(|group| group.started_at);
    let mut delayed = of(&[GroupState::Delayed]);
    delayed.sort_by_key(|group| group.due_at);
    let others = waiting.len() + running.len() + delayed.len();
    let stand = stopped.len().min(STOPPED.max(LANES.saturating_sub(others)));
    let run = running.len().min(RUNNING);
    let wait = waiting.len().min(LANES - stand - run.min(LANES - stand));
    let run = running.len().min(LANES - stand - wait);
    let later = delayed.len().min(LANES - stand - wait - run);
    let shown = stand + wait + run + later;
    stopped.truncate(stand);
    waiting.truncate(wait);
    running.truncate(run);
    delayed.truncate(later);
    let left = shown < found.len();
    ([stopped, waiting, running, delayed].concat(), left)
}

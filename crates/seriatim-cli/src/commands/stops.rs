//! Halts and pauses that jobs leave behind when they move to another queue.

use std::collections::BTreeSet;

use seriatim::admin::{GroupOverview, GroupState, Moved};

use crate::failure::Failure;
use crate::session::Session;

/// The number of groups whose state is read.
const LOOKED_AT: usize = 100;
/// How many stops are named.
const NAMED: usize = 5;

/// Returns a sentence for each halt or pause that held the jobs where they came from. Reads what
/// was before the move, so the move must not be committed yet.
pub(crate) async fn left(session: &Session, moved: &Moved) -> Result<Vec<String>, Failure> {
    let ids: Vec<_> = moved.jobs.iter().map(|moved| moved.job).collect();
    let lanes = session.lanes(&ids).await?;
    let mut stops = Vec::new();
    let queues: BTreeSet<_> = lanes.iter().map(|(queue, _)| queue).collect();
    for queue in session.client.queues(&mut *session.read().await?).await? {
        if queue.paused.is_some() && queues.contains(&queue.queue) {
            stops.push(format!("queue {:?} is paused, and these would run", queue.queue));
        }
    }
    let groups: Vec<_> =
        lanes.iter().filter_map(|(queue, group)| Some((queue, group.as_ref()?))).collect();
    let mut tx = session.read().await?;
    for (queue, group) in groups.iter().take(LOOKED_AT) {
        let overview = session.client.group(&mut *tx, queue, group).await?;
        let stopped = overview.as_ref().and_then(stopped);
        stops.extend(
            stopped.map(|stopped| format!("group {group:?} {stopped}, and these would run")),
        );
    }
    let more = stops.len().saturating_sub(NAMED);
    stops.truncate(NAMED);
    if more > 0 {
        stops.push(format!("{more} more of their groups are halted or paused"));
    }
    if groups.len() > LOOKED_AT {
        let rest = groups.len() - LOOKED_AT;
        stops.push(format!("{rest} more groups were not looked at for a halt or a pause"));
    }
    Ok(stops)
}

/// Returns what stops a group, if anything does.
fn stopped(group: &GroupOverview) -> Option<String> {
    match (group.state, group.halted_by) {
        (GroupState::Halted, Some(job)) => Some(format!("is halted by job {job}")),
        (GroupState::Halted, None) => Some(String::from("is halted")),
        _ => group.paused_at.map(|_| String::from("is paused")),
    }
}

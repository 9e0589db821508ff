//! Why a change may be a mistake.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use crate::client::client::Client;
use crate::job::overview::{GroupOverview, GroupState};

/// How many queues a list has at most.
const LISTED: usize = 1_000;
/// The number of groups whose state is read.
const LOOKED_AT: usize = 100;
/// How many stops are named.
const NAMED: usize = 5;

impl Client {
    /// Returns a doubt about the name of a queue, as a sentence: no job, setting or living
    /// processor names it. `None`: one does, or there are more queues than a list has (1,000).
    pub async fn doubt_about(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Option<String>, sqlx::Error> {
        let queues = self.queues(&mut *conn).await?;
        if queues.len() >= LISTED || queues.iter().any(|overview| overview.queue == queue) {
            return Ok(None);
        }
        let processors = self.processors(&mut *conn).await?;
        let mut served =
            processors.iter().filter(|processor| processor.alive).flat_map(|p| &p.queues).flatten();
        let doubt = || {
            format!("no job, setting or living processor names queue {queue:?}: is it mistyped?")
        };
        Ok((!served.any(|served| served == queue)).then(doubt))
    }

    /// Returns a sentence for each halt or pause that holds queued jobs outside of queue `to`.
    pub(super) async fn stops_left(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
        to: &str,
    ) -> Result<Vec<String>, sqlx::Error> {
        let lanes = self.store.lanes_left(&mut *conn, ids, to).await?;
        let mut stops = Vec::new();
        let queues: BTreeSet<_> = lanes.iter().map(|(queue, _)| queue).collect();
        for queue in self.queues(&mut *conn).await? {
            if queue.paused.is_some() && queues.contains(&queue.queue) {
                stops.push(format!("queue {:?} is paused, and these would run", queue.queue));
            }
        }
        let groups: Vec<_> =
            lanes.iter().filter_map(|(queue, group)| Some((queue, group.as_ref()?))).collect();
        for (queue, group) in groups.iter().take(LOOKED_AT) {
            let overview = self.group(&mut *conn, queue, group).await?;
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
}

/// Returns what stops a group, if anything does.
fn stopped(group: &GroupOverview) -> Option<String> {
    match (group.state, group.halted_by) {
        (GroupState::Halted, Some(job)) => Some(format!("is halted by job {job}")),
        (GroupState::Halted, None) => Some(String::from("is halted")),
        _ => group.paused_at.map(|_| String::from("is paused")),
    }
}

//! `seriatim pause` and `resume`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::admin::Change;

use crate::args::{Pause, Subject};
use crate::failure::Failure;
use crate::output::text::{program, shell};
use crate::session::Session;

/// Pauses a queue or a group.
pub(crate) async fn pause(session: &Session, pause: Pause) -> Result<(), Failure> {
    let Pause { subject: Subject { queue, group }, lasts } = pause;
    let until = match lasts {
        Some(lasts) => Some(end_of(session, lasts).await?),
        None => None,
    };
    session.apply(Change::Pause { queue, group, until }).await.map(drop)
}

/// Returns when a pause or a rest of this length ends, by the database's clock.
pub(crate) async fn end_of(session: &Session, lasts: Duration) -> Result<DateTime<Utc>, Failure> {
    let end = chrono::Duration::from_std(lasts).ok();
    let now = session.now().await?;
    let end = end.and_then(|lasts| now.checked_add_signed(lasts));
    end.ok_or_else(|| Failure::Usage(format!("{} s is too long", lasts.as_secs())))
}

/// Ends the pause of a queue or a group.
pub(crate) async fn resume(session: &Session, subject: Subject) -> Result<(), Failure> {
    let Subject { queue, group } = subject;
    let resumed = session.apply(Change::Resume { queue: queue.clone(), group: group.clone() });
    match (resumed.await, group) {
        (Err(failure @ Failure::NothingMatched(_)), Some(group)) => {
            Err(halted(session, &queue, &group).await?.unwrap_or(failure))
        }
        (done, _) => done.map(drop),
    }
}

/// Returns what ends a halt, if the group that is not paused is halted.
async fn halted(session: &Session, queue: &str, group: &str) -> Result<Option<Failure>, Failure> {
    let overview = session.client.group(&mut *session.read().await?, queue, group).await?;
    let Some(job) = overview.and_then(|group| group.halted_by) else { return Ok(None) };
    let (queue, group, program) = (shell(queue), shell(group), program());
    Ok(Some(Failure::Refused(format!(
        "the group is not paused, job {job} has halted it: `{program} job retry {job}` runs that \
         again, `{program} job skip {job}` gives it up, `{program} unhalt {queue} {group}` goes on \
         behind it"
    ))))
}

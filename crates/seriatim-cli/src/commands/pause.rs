//! `seriatim pause`, `resume` and `unhalt`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use seriatim::admin;
use sqlx::PgConnection;

use crate::args::{GroupArgs, Pause, Subject};
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::text::{program, shell};
use crate::session::Session;

/// How many queues a list has at most.
const LISTED: usize = 1_000;

/// Pauses a queue or a group.
pub(crate) async fn pause(session: &Session, pause: &Pause) -> Result<(), Failure> {
    let Pause { subject, lasts } = pause;
    let Subject { queue, group } = subject;
    let operator = &session.operator;
    let doubt = doubt(session, queue).await?;
    let until = match lasts {
        Some(lasts) => Some(end_of(session, *lasts).await?),
        None => None,
    };
    let act = async |conn: &mut PgConnection| {
        match (group, until) {
            (Some(group), Some(until)) => {
                operator.pause_group_until(conn, queue, group, until).await?;
            }
            (Some(group), None) => operator.pause_group(conn, queue, group).await?,
            (None, Some(until)) => operator.pause_queue_until(conn, queue, until).await?,
            (None, None) => operator.pause_queue(conn, queue).await?,
        }
        let (queue, group) = (&**queue, group.as_deref());
        let mut sentence = admin::Effect::Paused { queue, group, until }.to_string();
        if let Some(doubt) = &doubt {
            sentence = format!("{sentence}; {doubt}");
        }
        let data = json!({"action": "pause", "queue": queue, "group": group, "until": until});
        Ok(Effect { sentence, asks: doubt.is_some(), data, preview: None })
    };
    session.change(act).await
}

/// Returns a doubt about a queue that nobody names.
pub(crate) async fn doubt(session: &Session, queue: &str) -> Result<Option<String>, Failure> {
    let doubt =
        || format!("no job, setting or living processor names queue {queue:?}: is it mistyped?");
    Ok((!is_known(session, queue).await?).then(doubt))
}

/// Returns whether a job, a setting or a living processor names the queue. With more queues than a
/// list can have, every name counts as known.
async fn is_known(session: &Session, queue: &str) -> Result<bool, Failure> {
    let queues = session.client.queues(&mut *session.read().await?).await?;
    if queues.len() >= LISTED || queues.iter().any(|overview| overview.queue == queue) {
        return Ok(true);
    }
    let processors = session.client.processors(&mut *session.read().await?).await?;
    let mut served = processors.iter().filter_map(|processor| processor.queues.as_ref());
    Ok(served.any(|queues| queues.iter().any(|served| served == queue)))
}

/// Returns when a pause or a rest of this length ends, by the database's clock.
pub(crate) async fn end_of(session: &Session, lasts: Duration) -> Result<DateTime<Utc>, Failure> {
    let end = chrono::Duration::from_std(lasts).ok();
    let now = session.now().await?;
    let end = end.and_then(|lasts| now.checked_add_signed(lasts));
    end.ok_or_else(|| Failure::Usage(format!("{} s is too long", lasts.as_secs())))
}

/// Ends the pause of a queue or a group.
pub(crate) async fn resume(session: &Session, subject: &Subject) -> Result<(), Failure> {
    let Subject { queue, group } = subject;
    let operator = &session.operator;
    let act = async |conn: &mut PgConnection| {
        match group {
            Some(group) => operator.unpause_group(conn, queue, group).await?,
            None => operator.unpause_queue(conn, queue).await?,
        }
        let resumed = admin::Effect::Resumed { queue, group: group.as_deref() };
        Ok(effect(&resumed, subject, "resume"))
    };
    match (session.change(act).await, group) {
        (Err(failure @ Failure::NothingMatched(_)), Some(group)) => {
            Err(halted(session, queue, group).await?.unwrap_or(failure))
        }
        (done, _) => done,
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

/// Ends the halt of a group.
pub(crate) async fn unhalt(session: &Session, group: &GroupArgs) -> Result<(), Failure> {
    let GroupArgs { queue, group } = group;
    let subject = Subject { queue: queue.clone(), group: Some(group.clone()) };
    let act = async |conn: &mut PgConnection| {
        session.operator.unhalt_group(conn, queue, group).await?;
        Ok(effect(&admin::Effect::Unhalted { queue, group }, &subject, "unhalt"))
    };
    session.change(act).await
}

fn effect(effect: &admin::Effect<'_>, subject: &Subject, action: &str) -> Effect {
    let Subject { queue, group } = subject;
    let data = json!({"action": action, "queue": queue, "group": group});
    Effect::new(effect.to_string(), 0, data)
}

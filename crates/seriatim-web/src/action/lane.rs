//! Actions about a group, and the pause of a whole queue.

use chrono::{DateTime, Utc};
use seriatim::admin;

use crate::action::Action;
use crate::action::change::Change;
use crate::action::effect::{Effect, Undo};
use crate::error::WebError;

/// Pauses a queue, or a group of it.
pub(crate) async fn pause(
    change: &Change<'_>,
    queue: &str,
    group: Option<&str>,
    until: Option<DateTime<Utc>>,
) -> Result<Effect, WebError> {
    let operator = &change.operator;
    let mut tx = change.begin().await?;
    match (group, until) {
        (Some(group), None) => operator.pause_group(&mut *tx, queue, group).await?,
        (Some(group), Some(until)) => {
            operator.pause_group_until(&mut *tx, queue, group, until).await?;
        }
        (None, None) => operator.pause_queue(&mut *tx, queue).await?,
        (None, Some(until)) => operator.pause_queue_until(&mut *tx, queue, until).await?,
    }
    let resume = Action::Resume { queue: queue.to_owned(), group: group.map(str::to_owned) };
    let undo = Some(Undo::new(resume, change.taken_back()));
    let paused = Effect::worded(&admin::Effect::Paused { queue, group, until });
    change.end(tx, Effect { undo, ..paused }).await
}

/// Ends the pause of a queue, or of a group of it.
pub(crate) async fn resume(
    change: &Change<'_>,
    queue: &str,
    group: Option<&str>,
) -> Result<Effect, WebError> {
    let undo = pause_again(change, queue, group).await?;
    let mut tx = change.begin().await?;
    match group {
        Some(group) => change.operator.unpause_group(&mut *tx, queue, group).await?,
        None => change.operator.unpause_queue(&mut *tx, queue).await?,
    }
    let resumed = Effect::worded(&admin::Effect::Resumed { queue, group });
    change.end(tx, Effect { undo, ..resumed }).await
}

/// Returns the request for the same pause again. Read before the resume, which removes the reason
/// and the end of the pause.
async fn pause_again(
    change: &Change<'_>,
    queue: &str,
    group: Option<&str>,
) -> Result<Option<Undo>, WebError> {
    let app = change.app;
    let was = if let Some(group) = group {
        let was = app.client.group(&app.reads(), queue, group).await?;
        was.map(|was| (was.pause_reason, was.paused_until))
    } else {
        let was = app.client.paused_queue(&app.reads(), queue).await?;
        was.map(|was| (was.reason, was.until))
    };
    Ok(was.map(|(why, until)| {
        let (queue, group) = (queue.to_owned(), group.map(str::to_owned));
        Undo::new(Action::Pause { queue, group, until }, why.unwrap_or_default())
    }))
}

pub(crate) async fn unhalt(
    change: &Change<'_>,
    queue: &str,
    group: &str,
) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    change.operator.unhalt_group(&mut *tx, queue, group).await?;
    change.end(tx, Effect::worded(&admin::Effect::Unhalted { queue, group })).await
}

pub(crate) async fn park(
    change: &Change<'_>,
    queue: &str,
    group: &str,
) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let job = change.operator.park_group(&mut *tx, queue, group).await?;
    change.end(tx, Effect::worded(&admin::Effect::Parked { queue, group, job })).await
}

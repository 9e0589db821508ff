//! Actions about a group, and the pause of a whole queue.

use chrono::{DateTime, Utc};

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
    let end = until.map_or_else(
        || String::from("until it is resumed"),
        |until| until.format("until %F %T UTC, or until it is resumed").to_string(),
    );
    let message = match group {
        Some(group) => format!(
            "No job of group {group:?} starts {end}. Enqueues go on, and so does a running job."
        ),
        None => format!("No job of queue {queue:?} starts, in any process, {end}."),
    };
    let resume = Action::Resume { queue: queue.to_owned(), group: group.map(str::to_owned) };
    let undo = Some(Undo::new(resume, change.taken_back()));
    change.end(tx, Effect { undo, ..Effect::new(message) }).await
}

/// Ends the pause of a queue, or of a group of it.
pub(crate) async fn resume(
    change: &Change<'_>,
    queue: &str,
    group: Option<&str>,
) -> Result<Effect, WebError> {
    let undo = pause_again(change, queue, group).await?;
    let mut tx = change.begin().await?;
    let message = if let Some(group) = group {
        change.operator.unpause_group(&mut *tx, queue, group).await?;
        format!("Group {group:?} goes on with its next job.")
    } else {
        change.operator.unpause_queue(&mut *tx, queue).await?;
        format!("Queue {queue:?} goes on.")
    };
    change.end(tx, Effect { undo, ..Effect::new(message) }).await
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
        let was = app.client.group(&app.reads, queue, group).await?;
        was.map(|was| (was.pause_reason, was.paused_until))
    } else {
        let was = app.client.paused_queue(&app.reads, queue).await?;
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
    let message =
        format!("Group {group:?} goes on with its next job; the one that halted it stays failed.");
    change.end(tx, Effect::new(message)).await
}

pub(crate) async fn park(
    change: &Change<'_>,
    queue: &str,
    group: &str,
) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let job = change.operator.park_group(&mut *tx, queue, group).await?;
    let message = format!(
        "Job {job} of group {group:?} is failed, and those that wait behind it step aside with it, \
         until they are redriven or discarded. Later ones run."
    );
    change.end(tx, Effect::new(message)).await
}

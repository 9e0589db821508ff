//! Move tasks: started and cancelled.

use serde::{Deserialize, Serialize};
use seriatim::admin::{self, MoveTask, NewMoveTask};
use sqlx::PgConnection;

use crate::action::Action;
use crate::action::change::Change;
use crate::action::effect::{Effect, Undo};
use crate::app::App;
use crate::data;
use crate::error::WebError;

/// A move task to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartMoveTask {
    /// The queue to move jobs from.
    pub(crate) queue: String,
    /// `None`: each to the queue in which it failed.
    pub(crate) to: Option<String>,
    /// `None`: all groups, and jobs without one.
    pub(crate) group: Option<String>,
    /// `None`: all that waits.
    pub(crate) limit: Option<u32>,
    /// `None`: as fast as it goes.
    pub(crate) per_second: Option<u32>,
}

impl StartMoveTask {
    fn new_task(&self) -> NewMoveTask {
        let Self { queue, to, group, limit, per_second } = self.clone();
        let mut task = NewMoveTask::new(queue);
        task.to_queue = to;
        task.group = group;
        task.limit = limit;
        task.per_second = per_second;
        task
    }
}

pub(crate) async fn start(change: &Change<'_>, start: &StartMoveTask) -> Result<Effect, WebError> {
    let (queue, to) = (&*start.queue, start.to.as_deref());
    let advice = advice(change.app, to).await?;
    let mut tx = change.begin().await?;
    let id = change.operator.start_move_task(&mut *tx, &start.new_task()).await?;
    let task = find(change, &mut tx, queue, id).await?;
    if task.to_move.count == 0 {
        return Err(WebError::Refused(match to {
            Some(_) => format!("Nothing waits in queue {queue:?}."),
            None => format!(
                "No dead letter of another queue waits in queue {queue:?}. Name a queue to move \
                 what waits."
            ),
        }));
    }
    let cancel = Action::CancelMoveTask { queue: queue.to_owned(), task: id };
    let undo = Some(Undo::new(cancel, change.taken_back()));
    let message = format!("{task}. A cancel ends the task; what has moved stays moved.{advice}");
    let jobs = Some(task.to_move.count);
    change.end(tx, Effect { jobs, undo, ..Effect::new(message) }).await
}

/// Returns what may keep a task from its end, in sentences: a target that seems mistyped, and that
/// no processor lives to carry it on.
async fn advice(app: &App, to: Option<&str>) -> Result<String, WebError> {
    let mut advice = String::new();
    let nodes = data::nodes(app).await?;
    if let Some(to) = to {
        advice = data::mistyped(app, to).await?.unwrap_or_default();
    }
    if !nodes.iter().any(|node| node.alive) {
        advice.push_str(
            " No processor lives: a server for SQS clients carries it on, or `seriatim move-task \
             run`.",
        );
    }
    Ok(advice)
}

pub(crate) async fn cancel(
    change: &Change<'_>,
    queue: &str,
    task: i64,
) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let MoveTask { to_queue: to, group, limit, per_second, .. } =
        find(change, &mut tx, queue, task).await?;
    let moved = change.operator.cancel_move_task(&mut *tx, task).await?;
    let ended = || WebError::Refused(format!("Move task {task} has ended already."));
    let moved = moved.ok_or_else(ended)?;
    let rest = |limit: u32| limit.saturating_sub(u32::try_from(moved).unwrap_or(u32::MAX));
    let limit = limit.map(rest);
    let start = StartMoveTask { queue: queue.to_owned(), to, group, limit, per_second };
    let undo = Some(Undo::new(Action::StartMoveTask(start), change.taken_back()));
    let cancelled = Effect::worded(&admin::Effect::MoveTaskCancelled { task, moved });
    change.end(tx, Effect { jobs: Some(moved), undo, ..cancelled }).await
}

async fn find(
    change: &Change<'_>,
    tx: &mut PgConnection,
    queue: &str,
    task: i64,
) -> Result<MoveTask, WebError> {
    let tasks = change.app.client.move_tasks(tx, Some(queue)).await?;
    let missing = || WebError::NotFound(format!("Queue {queue:?} has no move task {task}."));
    tasks.into_iter().find(|listed| listed.id == task).ok_or_else(missing)
}

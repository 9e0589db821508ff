//! Move tasks: started and cancelled.

use seriatim::admin::MoveTask;
use sqlx::PgConnection;

use crate::action::Action;
use crate::action::change::Change;
use crate::action::effect::{Effect, Undo, count};
use crate::app::App;
use crate::data;
use crate::error::WebError;

pub(crate) async fn start(
    change: &Change<'_>,
    queue: &str,
    to: Option<&str>,
    per_second: Option<u32>,
) -> Result<Effect, WebError> {
    let advice = advice(change.app, to).await?;
    let mut tx = change.begin().await?;
    let id = change.operator.start_move_task(&mut *tx, queue, to, per_second).await?;
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
        let served = nodes.iter().any(|node| node.queues.iter().flatten().any(|queue| queue == to));
        if !served && data::queue(app, to).await?.is_none() {
            advice = format!(" No job, setting or processor names queue {to:?}: is it mistyped?");
        }
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
    let MoveTask { to_queue: to, per_second, .. } = find(change, &mut tx, queue, task).await?;
    let moved = change.operator.cancel_move_task(&mut *tx, task).await?;
    let ended = || WebError::Refused(format!("Move task {task} has ended already."));
    let moved = moved.ok_or_else(ended)?;
    let start = Action::StartMoveTask { queue: queue.to_owned(), to, per_second };
    let undo = Some(Undo::new(start, change.taken_back()));
    let message = format!(
        "Move task {task} ends. {} moved and stay where they are; the others stay in queue {queue:?}.",
        count(moved)
    );
    change.end(tx, Effect { jobs: Some(moved), undo, ..Effect::new(message) }).await
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

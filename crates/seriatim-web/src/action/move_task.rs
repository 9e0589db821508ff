//! Move tasks: started and cancelled.

use serde_json::json;
use seriatim::admin::{MoveTask, Operator};
use sqlx::PgConnection;

use crate::action::Move;
use crate::action::effect::{Effect, count};
use crate::action::undo::Undo;
use crate::app::App;
use crate::data;
use crate::error::WebError;

/// Returns what may keep a task from its end, in sentences: a target that seems mistyped, and that
/// no processor lives to carry it on.
pub(in crate::action) async fn advice(app: &App, task: &Move) -> Result<String, WebError> {
    let mut advice = String::new();
    let nodes = data::nodes(app).await?;
    if let Some(to) = &task.to {
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

pub(in crate::action) async fn start(
    operator: &Operator,
    tx: &mut PgConnection,
    task: &Move,
    reason: &str,
) -> Result<Effect, WebError> {
    let Move { from, to, per_second } = task;
    let id = operator.start_move_task(&mut *tx, from, to.as_deref(), *per_second).await?;
    let started = find(operator, tx, from, id).await?;
    if started.to_move.count == 0 {
        return Err(WebError::Refused(match to {
            Some(_) => format!("Nothing waits in queue {from:?}."),
            None => format!(
                "No dead letter of another queue waits in queue {from:?}. Name a queue to move \
                 what waits."
            ),
        }));
    }
    let undo = Undo::new(
        "Cancel move task",
        "api/v1/move-tasks/cancel",
        json!({"queue": from, "task": id, "reason": format!("taken back: {reason}")}),
    );
    let jobs = started.to_move.count;
    Ok(Effect { jobs: Some(jobs), undo: Some(undo), ..Effect::of(in_words(&started)) })
}

/// Returns what a task does, in sentences.
fn in_words(task: &MoveTask) -> String {
    let at_least = if task.to_move.or_more { "At least " } else { "" };
    let back = || String::from("back to the queue in which each failed");
    format!(
        "{at_least}{} of queue {:?} move {}, {}, those of a group in their order. What runs stays. \
         A cancel ends the task; what has moved stays moved.",
        count(task.to_move.count),
        task.from_queue,
        task.to_queue.as_ref().map_or_else(back, |to| format!("to queue {to:?}")),
        task.per_second.map_or_else(
            || String::from("as fast as it goes"),
            |rate| format!("{rate} a second at most")
        )
    )
}

pub(in crate::action) async fn cancel(
    operator: &Operator,
    tx: &mut PgConnection,
    queue: &str,
    task: i64,
    reason: &str,
) -> Result<Effect, WebError> {
    let MoveTask { to_queue, per_second, .. } = find(operator, tx, queue, task).await?;
    let moved = operator.cancel_move_task(&mut *tx, task).await?;
    let ended = || WebError::Refused(format!("Move task {task} has ended already."));
    let moved = moved.ok_or_else(ended)?;
    let undo = Undo::new(
        "Start move task",
        "api/v1/move-tasks/start",
        json!({"queue": queue, "to": to_queue, "per_second": per_second,
            "reason": format!("taken back: {reason}")}),
    );
    let message = format!(
        "Move task {task} ends. {} moved and stay where they are; the others stay in queue {queue:?}.",
        count(moved)
    );
    Ok(Effect { jobs: Some(moved), undo: Some(undo), ..Effect::of(message) })
}

async fn find(
    operator: &Operator,
    tx: &mut PgConnection,
    queue: &str,
    task: i64,
) -> Result<MoveTask, WebError> {
    let tasks = operator.client().move_tasks(tx, Some(queue)).await?;
    let missing = || WebError::NotFound(format!("Queue {queue:?} has no move task {task}."));
    tasks.into_iter().find(|listed| listed.id == task).ok_or_else(missing)
}

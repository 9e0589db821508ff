//! `seriatim move-task`: what waits in a queue, moved so many jobs a second; dead letters, moved
//! back.

use std::time::Duration;

use serde_json::json;
use seriatim::admin::{Change, MoveTask, MoveTaskStatus, NewMoveTask};
use tokio::time::sleep;

use crate::args;
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::{clock, count, number};
use crate::session::Session;

/// The wait for the next batch, if nothing could be moved.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a command about move tasks.
pub(crate) async fn run(session: &Session, task: args::MoveTask) -> Result<(), Failure> {
    match task {
        args::MoveTask::Start { from, to, group, limit, per_second } => {
            let mut task = NewMoveTask::new(from);
            task.to_queue = to;
            task.group = group;
            task.limit = limit;
            task.per_second = per_second;
            session.apply(Change::StartMoveTask(task)).await.map(drop)
        }
        args::MoveTask::List { from } => list(session, from.as_deref()).await,
        args::MoveTask::Cancel { task } => {
            session.apply(Change::CancelMoveTask { task }).await.map(drop)
        }
        args::MoveTask::Run => carry_on(session).await,
    }
}

async fn list(session: &Session, from: Option<&str>) -> Result<(), Failure> {
    let tasks = session.client.move_tasks(&mut *session.read().await?, from).await?;
    if tasks.is_empty() {
        return Err(Failure::NothingMatched(String::from("there is no move task")));
    }
    if session.json() {
        return tasks.iter().try_for_each(json_line);
    }
    let mut table = Table::new(&[
        "#task",
        "status",
        "~from",
        "~to",
        "~group",
        "#a second",
        "#moved",
        "#of",
        "started",
        "ended",
        "~error",
    ]);
    for task in tasks {
        table.row([
            task.id.to_string(),
            task.status.to_string(),
            task.from_queue,
            task.to_queue.unwrap_or_else(|| String::from("(back)")),
            task.group.unwrap_or_default(),
            task.per_second.map(|rate| rate.to_string()).unwrap_or_default(),
            task.moved.to_string(),
            number(task.to_move),
            clock(task.started_at),
            task.ended_at.map(clock).unwrap_or_default(),
            task.failure.unwrap_or_default(),
        ]);
    }
    table.print()
}

/// Carries the running tasks on until they end. A dry run shows one batch of each.
async fn carry_on(session: &Session) -> Result<(), Failure> {
    let client = &session.client;
    if running(session).await?.is_empty() {
        return Err(Failure::NothingMatched(String::from("no move task is running")));
    }
    let mut moved = 0;
    while !session.dry_run && !running(session).await?.is_empty() {
        let mut tx = session.begin().await?;
        let batch = client.run_move_tasks(&mut *tx).await?;
        tx.commit().await?;
        moved += batch;
        if batch == 0 {
            // A rate allows none yet, or a handler holds a group.
            sleep(PAUSE).await;
        }
    }
    if session.dry_run {
        let mut tx = session.begin().await?;
        moved = client.run_move_tasks(&mut *tx).await?;
        tx.rollback().await?;
    }
    let sentence = format!("{} moved", count(moved, "job"));
    session.tell(&Effect::new(sentence, moved, json!({"action": "run_move_tasks", "jobs": moved})))
}

async fn running(session: &Session) -> Result<Vec<MoveTask>, Failure> {
    let tasks = session.client.move_tasks(&mut *session.read().await?, None).await?;
    Ok(tasks.into_iter().filter(|task| task.status == MoveTaskStatus::Running).collect())
}

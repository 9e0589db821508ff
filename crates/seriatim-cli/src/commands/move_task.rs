//! `seriatim move-task`: what waits in a queue, moved so many jobs a second; dead letters, moved
//! back.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::{self, MoveTask, MoveTaskStatus, NewMoveTask};
use sqlx::PgConnection;
use tokio::time::sleep;

use crate::args;
use crate::change::Effect;
use crate::commands::pause::doubt;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, count, number, program};
use crate::output::{json, json_line, remark};
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
            start(session, &task).await
        }
        args::MoveTask::List { from } => list(session, from.as_deref()).await,
        args::MoveTask::Cancel { task } => cancel(session, task).await,
        args::MoveTask::Run => carry_on(session).await,
    }
}

async fn start(session: &Session, new: &NewMoveTask) -> Result<(), Failure> {
    let operator = &session.operator;
    let doubt = match &new.to_queue {
        Some(to) => doubt(session, to).await?,
        None => None,
    };
    let act = async |conn: &mut PgConnection| {
        let id = operator.start_move_task(&mut *conn, new).await?;
        let tasks = session.client.move_tasks(conn, Some(&new.from_queue)).await?;
        let task = tasks.into_iter().find(|task| task.id == id);
        let task = task.ok_or_else(|| Failure::Error(format!("there is no move task {id}")))?;
        if task.to_move.count == 0 {
            return Err(nothing_waits(&task));
        }
        let doubts = doubt.as_ref().map(|doubt| format!("; {doubt}")).unwrap_or_default();
        let sentence = format!("task {id}: {task}{doubts}");
        let data = json::change("start_move_task", &task)?;
        let mut without_id = data.clone();
        without_id["id"] = Value::Null;
        let preview = Some((format!("{task}{doubts}"), without_id));
        let asks = task.to_move.count > 1 || doubt.is_some();
        Ok(Effect { sentence, asks, data, preview })
    };
    session.change(act).await?;
    if !session.dry_run && !is_carried_on(session).await? {
        let advice = format!(
            "no processor lives: a server for SQS clients carries it on, or `{} move-task run`",
            program()
        );
        remark(session.form, &advice);
    }
    Ok(())
}

fn nothing_waits(task: &MoveTask) -> Failure {
    let from = match &task.group {
        Some(group) => format!("group {group:?} of queue {:?}", task.from_queue),
        None => format!("queue {:?}", task.from_queue),
    };
    Failure::NothingMatched(match task.to_queue {
        Some(_) => format!("nothing waits in {from}"),
        None => format!("no dead letter of another queue waits in {from}; --to moves what waits"),
    })
}

/// Returns whether a living processor may carry tasks on. Servers for SQS clients tell nobody.
async fn is_carried_on(session: &Session) -> Result<bool, Failure> {
    let processors = session.client.processors(&mut *session.read().await?).await?;
    Ok(processors.iter().any(|processor| processor.alive))
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

async fn cancel(session: &Session, task: i64) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        let moved = session.operator.cancel_move_task(conn, task).await?;
        let moved = moved
            .ok_or_else(|| Failure::NothingMatched(format!("no move task {task} is running")))?;
        let sentence = admin::Effect::MoveTaskCancelled { task, moved }.to_string();
        let data = json!({"action": "cancel_move_task", "task": task, "moved": moved});
        Ok(Effect::new(sentence, 1, data))
    };
    session.change(act).await
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

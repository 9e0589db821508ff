//! Carries an action out, or shows what it would do.

use chrono::{DateTime, Utc};
use seriatim::JobStatus;
use seriatim::admin::{Cancelled, Operator};
use sqlx::PgConnection;

use crate::action::dead_letters::{Verb, failed};
use crate::action::effect::{Effect, count, overtaken, redriven_effect};
use crate::action::purge::{purge, purge_everything};
use crate::action::undo::undo;
use crate::action::{Action, Ask, move_task};
use crate::app::App;
use crate::config::Identity;
use crate::error::WebError;

const REASON_LIMIT: usize = 1_000;

/// Carries an action out, recorded with the actor and the reason; a dry run is rolled back.
pub(crate) async fn act(
    app: &App,
    identity: &Identity,
    action: &Action,
    ask: &Ask,
) -> Result<Effect, WebError> {
    let reason = ask.reason.trim();
    if !ask.dry_run && reason.is_empty() {
        return Err(WebError::BadRequest(String::from("A change needs a reason.")));
    }
    if reason.chars().count() > REASON_LIMIT || reason.contains('\0') {
        return Err(WebError::BadRequest(format!(
            "A reason has at most {REASON_LIMIT} characters, and no NUL."
        )));
    }
    let operator = app.client.operator(&identity.name, reason);
    let mut effect = match action {
        // A rollback would not undo it.
        Action::Abort { job } if ask.dry_run => preview_abort(app, *job).await?,
        Action::PurgeGroup { queue, group } => {
            purge(app, &operator, queue, Some(group), ask.dry_run).await?
        }
        Action::PurgeQueue { queue } => purge(app, &operator, queue, None, ask.dry_run).await?,
        Action::PurgeEverything { queue } => {
            purge_everything(app, &operator, queue, ask.dry_run).await?
        }
        Action::RedriveFailed(which) => {
            failed(app, &operator, which, Verb::Redrive, ask.dry_run).await?
        }
        Action::DiscardFailed(which) => {
            failed(app, &operator, which, Verb::Discard, ask.dry_run).await?
        }
        action => {
            // Looked at before: afterwards the group has moved on.
            let behind = behind(app, action).await?;
            let undo = undo(app, action, reason).await?;
            let advice = advice(app, action).await?;
            let mut tx = app.writes.begin().await?;
            let mut effect = in_transaction(&operator, &mut tx, action, &behind, reason).await?;
            effect.message.push_str(&advice);
            if ask.dry_run {
                tx.rollback().await?;
                Effect { undo: None, ..effect }
            } else {
                tx.commit().await?;
                Effect { undo: undo.or(effect.undo), ..effect }
            }
        }
    };
    effect.dry_run = ask.dry_run;
    if !ask.dry_run {
        tracing::info!(actor = identity.name, ?action, reason, "an operator's action");
        app.forget().await;
        app.poll.announce();
    }
    Ok(effect)
}

async fn preview_abort(app: &App, job: i64) -> Result<Effect, WebError> {
    let running = app.client.job_status(&app.reads, job).await? == Some(JobStatus::Started);
    if running {
        return Ok(Effect::of(format!(
            "The run of job {job} is ended, and its handler dropped. The attempt counts: it runs \
             again if it has one left."
        )));
    }
    Err(WebError::Refused(format!("Job {job} does not run.")))
}

/// Returns the jobs behind the job that the action is about, in words.
async fn behind(app: &App, action: &Action) -> Result<String, WebError> {
    let (Action::Skip { job } | Action::Cancel { job }) = action else {
        return Ok(String::new());
    };
    let Some(explained) = app.client.explain_job(&app.reads, *job).await? else {
        return Ok(String::new());
    };
    Ok(match (explained.behind.count, explained.group) {
        (0, Some(_)) => String::from("nothing is behind it"),
        (1, Some(_)) => String::from("1 job behind it goes on"),
        (_, Some(_)) => format!("{} jobs behind it go on", explained.behind),
        (_, None) => String::from("it has no group"),
    })
}

/// Returns what else there is to know before the action, in a sentence.
async fn advice(app: &App, action: &Action) -> Result<String, WebError> {
    match action {
        Action::StartMoveTask(task) => move_task::advice(app, task).await,
        _ => Ok(String::new()),
    }
}

async fn in_transaction(
    operator: &Operator,
    tx: &mut PgConnection,
    action: &Action,
    behind: &str,
    reason: &str,
) -> Result<Effect, WebError> {
    match action {
        Action::Cancel { job } => {
            let message = match operator.cancel(&mut *tx, *job).await? {
                Cancelled::Now => format!("Job {job} is cancelled: it does not run; {behind}."),
                _ => format!("Job {job} is running: its handler is asked to stop; then {behind}."),
            };
            Ok(Effect::of(message))
        }
        Action::Retry { job } => {
            let retried = operator.retry(&mut *tx, *job).await?;
            let message = format!(
                "Job {job} runs again, next in its group, with all its attempts{}.",
                overtaken(retried.overtaken)
            );
            Ok(Effect { overtaken: Some(retried.overtaken), ..Effect::of(message) })
        }
        Action::Skip { job } => {
            operator.skip(&mut *tx, *job).await?;
            Ok(Effect::of(format!("Job {job} is skipped and stays failed; {behind}.")))
        }
        Action::RunNow { job } => {
            operator.run_now(&mut *tx, *job).await?;
            Ok(Effect::of(format!("Job {job} is due now; it runs at its turn.")))
        }
        Action::Abort { job } => {
            operator.abort(&mut *tx, *job).await?;
            Ok(Effect::of(format!(
                "The run of job {job} is ended. It runs again if it has an attempt left."
            )))
        }
        Action::Park { queue, group } => {
            let job = operator.park_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!(
                "Job {job} of group {group:?} is failed, and those that wait behind it step aside \
                 with it, until they are redriven or discarded. Later ones run."
            )))
        }
        Action::ReleaseNode { node } => {
            let released = operator.release_node(&mut *tx, node).await?;
            Ok(Effect::of(format!(
                "Node {node:?} is taken to be gone: the claims of {} groups and {} ungrouped jobs \
                 are taken over, unless it shows that it lives.",
                released.groups, released.jobs
            )))
        }
        Action::PauseGroup { queue, group, until } => {
            pause(operator, tx, queue, Some(group), *until).await
        }
        Action::ResumeGroup { queue, group } => {
            operator.unpause_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!("Group {group:?} goes on with its next job.")))
        }
        Action::Unhalt { queue, group } => {
            operator.unhalt_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!(
                "Group {group:?} goes on with its next job; the one that halted it stays failed."
            )))
        }
        Action::PauseQueue { queue, until } => pause(operator, tx, queue, None, *until).await,
        Action::ResumeQueue { queue } => {
            operator.unpause_queue(&mut *tx, queue).await?;
            Ok(Effect::of(format!("Queue {queue:?} goes on.")))
        }
        Action::Redrive { queue, limit } => {
            let redriven = operator.redrive(&mut *tx, queue, *limit).await?;
            Ok(redriven_effect(redriven, &format!("failed in queue {queue:?}")))
        }
        Action::RedriveParked { queue, group, job } => {
            let redriven = operator.redrive_parked(&mut *tx, queue, group, *job).await?;
            Ok(redriven_effect(redriven, &format!("parked in group {group:?}")))
        }
        Action::DiscardParked { queue, group, job } => {
            let jobs = operator.discard_parked(&mut *tx, queue, group, *job).await?;
            let message = format!(
                "{} parked in group {group:?} end as cancelled; the failed one stays failed.",
                count(jobs)
            );
            Ok(Effect { jobs: Some(jobs), ..Effect::of(message) })
        }
        Action::StartMoveTask(task) => move_task::start(operator, tx, task, reason).await,
        Action::CancelMoveTask { queue, task } => {
            move_task::cancel(operator, tx, queue, *task, reason).await
        }
        Action::PurgeGroup { .. }
        | Action::PurgeQueue { .. }
        | Action::PurgeEverything { .. }
        | Action::RedriveFailed(_)
        | Action::DiscardFailed(_) => {
            Err(WebError::BadRequest(String::from("This is not done in one transaction.")))
        }
    }
}

/// Pauses a queue, or a group of it.
async fn pause(
    operator: &Operator,
    tx: &mut PgConnection,
    queue: &str,
    group: Option<&str>,
    until: Option<DateTime<Utc>>,
) -> Result<Effect, WebError> {
    match (group, until) {
        (Some(group), None) => operator.pause_group(tx, queue, group).await?,
        (Some(group), Some(until)) => {
            operator.pause_group_until(tx, queue, group, until).await?;
        }
        (None, None) => operator.pause_queue(tx, queue).await?,
        (None, Some(until)) => operator.pause_queue_until(tx, queue, until).await?,
    }
    let end = until.map_or_else(
        || String::from("until it is resumed"),
        |until| until.format("until %F %T UTC, or until it is resumed").to_string(),
    );
    Ok(Effect::of(match group {
        Some(group) => format!(
            "No job of group {group:?} starts {end}. Enqueues go on, and so does a running job."
        ),
        None => format!("No job of queue {queue:?} starts, in any process, {end}."),
    }))
}

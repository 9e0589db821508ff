//! Carries an action out, or shows what it would do.

use chrono::{DateTime, Utc};
use seriatim::{Cancelled, Client, JobStatus};
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
    let client = if ask.dry_run {
        app.client.clone()
    } else {
        app.client.acting_as(&identity.name).because(reason)
    };
    let mut effect = match action {
        // A rollback would not undo it.
        Action::Abort { job } if ask.dry_run => preview_abort(app, *job).await?,
        Action::PurgeGroup { queue, group } => {
            purge(app, &client, queue, Some(group), ask.dry_run).await?
        }
        Action::PurgeQueue { queue } => purge(app, &client, queue, None, ask.dry_run).await?,
        Action::PurgeEverything { queue } => {
            purge_everything(app, &client, queue, ask.dry_run).await?
        }
        Action::RedriveFailed(which) => {
            failed(app, &client, which, Verb::Redrive, ask.dry_run).await?
        }
        Action::DiscardFailed(which) => {
            failed(app, &client, which, Verb::Discard, ask.dry_run).await?
        }
        action => {
            // Looked at before: afterwards the group has moved on.
            let behind = behind(app, action).await?;
            let undo = undo(app, action, reason).await?;
            let advice = advice(app, action).await?;
            let mut tx = app.writes.begin().await?;
            let mut effect = in_transaction(&client, &mut tx, action, &behind, reason).await?;
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
    client: &Client,
    tx: &mut PgConnection,
    action: &Action,
    behind: &str,
    reason: &str,
) -> Result<Effect, WebError> {
    match action {
        Action::Cancel { job } => {
            let message = match client.cancel(&mut *tx, *job).await? {
                Cancelled::Now => format!("Job {job} is cancelled: it does not run; {behind}."),
                _ => format!("Job {job} is running: its handler is asked to stop; then {behind}."),
            };
            Ok(Effect::of(message))
        }
        Action::Retry { job } => {
            let retried = client.retry(&mut *tx, *job).await?;
            let message = match retried.dead_letter_of {
                None => format!(
                    "Job {job} runs again, next in its group, with all its attempts{}.",
                    overtaken(retried.overtaken)
                ),
                Some(queue) => format!(
                    "Job {job} is a dead letter of queue {queue:?} again, and waits in its \
                     dead-letter queue until it is redriven."
                ),
            };
            Ok(Effect { overtaken: Some(retried.overtaken), ..Effect::of(message) })
        }
        Action::Skip { job } => {
            client.skip(&mut *tx, *job).await?;
            Ok(Effect::of(format!("Job {job} is skipped and stays failed; {behind}.")))
        }
        Action::RunNow { job } => {
            client.run_now(&mut *tx, *job).await?;
            Ok(Effect::of(format!("Job {job} is due now; it runs at its turn.")))
        }
        Action::Abort { job } => {
            client.abort(&mut *tx, *job).await?;
            Ok(Effect::of(format!(
                "The run of job {job} is ended. It runs again if it has an attempt left."
            )))
        }
        Action::Park { queue, group } => {
            let job = client.park_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!(
                "Job {job} of group {group:?} is failed, and those that wait behind it step aside \
                 with it, until they are redriven or discarded. Later ones run."
            )))
        }
        Action::ReleaseNode { node } => {
            let released = client.release_node(&mut *tx, node).await?;
            Ok(Effect::of(format!(
                "Node {node:?} is taken to be gone: the claims of {} groups and {} ungrouped jobs \
                 are taken over, unless it shows that it lives.",
                released.groups, released.jobs
            )))
        }
        Action::PauseGroup { queue, group, until } => {
            pause(client, tx, queue, Some(group), *until, reason).await
        }
        Action::ResumeGroup { queue, group } => {
            client.unpause_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!("Group {group:?} goes on with its next job.")))
        }
        Action::Unhalt { queue, group } => {
            client.unhalt_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!(
                "Group {group:?} goes on with its next job; the one that halted it stays failed."
            )))
        }
        Action::PauseQueue { queue, until } => pause(client, tx, queue, None, *until, reason).await,
        Action::ResumeQueue { queue } => {
            client.unpause_queue(&mut *tx, queue).await?;
            Ok(Effect::of(format!("Queue {queue:?} goes on.")))
        }
        Action::Redrive { queue, limit } => {
            let redriven = client.redrive(&mut *tx, queue, *limit).await?;
            Ok(redriven_effect(redriven, &format!("failed in queue {queue:?}")))
        }
        Action::RedriveParked { queue, group, job } => {
            let redriven = client.redrive_parked(&mut *tx, queue, group, *job).await?;
            Ok(redriven_effect(redriven, &format!("parked in group {group:?}")))
        }
        Action::DiscardParked { queue, group, job } => {
            let jobs = client.discard_parked(&mut *tx, queue, group, *job).await?;
            let message = format!(
                "{} parked in group {group:?} end as cancelled; the failed one stays failed.",
                count(jobs)
            );
            Ok(Effect { jobs: Some(jobs), ..Effect::of(message) })
        }
        Action::StartMoveTask(task) => move_task::start(client, tx, task, reason).await,
        Action::CancelMoveTask { queue, task } => {
            move_task::cancel(client, tx, queue, *task, reason).await
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
    client: &Client,
    tx: &mut PgConnection,
    queue: &str,
    group: Option<&str>,
    until: Option<DateTime<Utc>>,
    reason: &str,
) -> Result<Effect, WebError> {
    let why = Some(reason);
    match (group, until) {
        (Some(group), None) => client.pause_group(tx, queue, group, why).await?,
        (Some(group), Some(until)) => {
            client.pause_group_until(tx, queue, group, until, why).await?;
        }
        (None, None) => client.pause_queue(tx, queue, why).await?,
        (None, Some(until)) => client.pause_queue_until(tx, queue, until, why).await?,
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

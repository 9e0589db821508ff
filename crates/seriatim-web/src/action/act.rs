//! Carries an action out, or shows what it would do.

use crate::action::change::Change;
use crate::action::dead_letters::Verb;
use crate::action::effect::Effect;
use crate::action::{
    Action, Ask, batch, dead_letters, job, lane, move_task, node, parked, purge, schedule,
};
use crate::app::App;
use crate::config::Identity;
use crate::error::WebError;

/// Carries an action out, recorded with the actor and the reason; a dry run is rolled back.
pub(crate) async fn act(app: &App, identity: &Identity, ask: Ask) -> Result<Effect, WebError> {
    let Ask { action, reason, dry_run } = ask;
    let change = Change::new(app, identity, &reason, dry_run)?;
    let mut effect = carry_out(&change, &action).await?;
    effect.dry_run = dry_run;
    if !dry_run {
        let reason = change.reason;
        tracing::info!(actor = identity.name, ?action, reason, "an operator's action");
        app.forget().await;
        app.poll.announce();
    }
    Ok(effect)
}

async fn carry_out(change: &Change<'_>, action: &Action) -> Result<Effect, WebError> {
    match action {
        Action::Cancel { job } => job::cancel(change, *job).await,
        Action::Retry { job } => job::retry(change, *job).await,
        Action::Skip { job } => job::skip(change, *job).await,
        Action::RunNow { job } => job::run_now(change, *job).await,
        Action::Abort { job } => job::abort(change, *job).await,
        Action::Pause { queue, group, until } => {
            lane::pause(change, queue, group.as_deref(), *until).await
        }
        Action::Resume { queue, group } => lane::resume(change, queue, group.as_deref()).await,
        Action::Unhalt { queue, group } => lane::unhalt(change, queue, group).await,
        Action::Park { queue, group } => lane::park(change, queue, group).await,
        Action::Purge { queue, group } => purge::purge(change, queue, group.as_deref()).await,
        Action::PurgeEverything { queue } => purge::purge_everything(change, queue).await,
        Action::Redrive { queue, limit } => dead_letters::redrive(change, queue, *limit).await,
        Action::RedriveParked { queue, group, job } => {
            parked::redrive(change, queue, group, *job).await
        }
        Action::DiscardParked { queue, group, job } => {
            parked::discard(change, queue, group, *job).await
        }
        Action::RedriveJobs { jobs } => dead_letters::named(change, Verb::Redrive, jobs).await,
        Action::DiscardJobs { jobs } => dead_letters::named(change, Verb::Discard, jobs).await,
        Action::RedriveMatching { matching, so_far } => {
            dead_letters::matching(change, Verb::Redrive, matching, *so_far).await
        }
        Action::DiscardMatching { matching, so_far } => {
            dead_letters::matching(change, Verb::Discard, matching, *so_far).await
        }
        Action::StartMoveTask(task) => move_task::start(change, task).await,
        Action::CancelMoveTask { queue, task } => move_task::cancel(change, queue, *task).await,
        Action::ReleaseNode { node } => node::release(change, node).await,
        Action::SetSchedule(set) => schedule::set(change, set).await,
        Action::PauseSchedule { schedule } => schedule::pause(change, schedule).await,
        Action::ResumeSchedule { schedule } => schedule::resume(change, schedule).await,
        Action::FireSchedule { schedule } => schedule::fire(change, schedule).await,
        Action::RemoveSchedule { schedule } => schedule::remove(change, schedule).await,
        Action::AbandonBatch { batch } => batch::abandon(change, *batch).await,
    }
}

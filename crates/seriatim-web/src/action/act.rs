//! Carries an action out, or shows what it would do.

use seriatim::admin::Change;

use crate::action::effect::Effect;
use crate::action::pending::Pending;
use crate::action::{Action, Ask, PageAction, dead_letters, schedule};
use crate::app::App;
use crate::config::Identity;
use crate::error::WebError;

/// Bounds the jobs that a request names.
const NAMED: usize = 500;
/// Bounds the jobs of one redrive of a queue.
const REDRIVE: u32 = 200;

/// Carries an action out, recorded with the actor and the reason; a dry run is rolled back.
pub(crate) async fn act(app: &App, identity: &Identity, ask: Ask) -> Result<Effect, WebError> {
    let Ask { action, reason, dry_run } = ask;
    let pending = Pending::new(app, identity, &reason, dry_run)?;
    let mut effect = match &action {
        Action::Change(change) => changed(&pending, change).await?,
        Action::Page(PageAction::RedriveMatching { matching, so_far }) => {
            dead_letters::matching(&pending, dead_letters::Verb::Redrive, matching, *so_far).await?
        }
        Action::Page(PageAction::DiscardMatching { matching, so_far }) => {
            dead_letters::matching(&pending, dead_letters::Verb::Discard, matching, *so_far).await?
        }
        Action::Page(PageAction::SetSchedule(set)) => schedule::set(&pending, set).await?,
    };
    effect.dry_run = dry_run;
    if !dry_run {
        let reason = pending.reason;
        tracing::info!(actor = identity.name, ?action, reason, "an operator's action");
        app.forget().await;
        app.poll.announce();
    }
    Ok(effect)
}

async fn changed(pending: &Pending<'_>, change: &Change) -> Result<Effect, WebError> {
    if let Change::RedriveJobs { ids } | Change::DiscardJobs { ids } | Change::MoveJobs { ids, .. } =
        change
        && !(1..=NAMED).contains(&ids.len())
    {
        return Err(WebError::BadRequest(format!("Name 1 to {NAMED} jobs.")));
    }
    if let Change::Redrive { limit: Some(limit), .. } = change
        && *limit > REDRIVE
    {
        return Err(WebError::BadRequest(format!("A redrive has at most {REDRIVE} jobs.")));
    }
    let mut conn = pending.app.writes().acquire().await?;
    let operator = &pending.operator;
    let effect = if pending.dry_run {
        operator.preview(&mut conn, change).await?
    } else {
        operator.apply(&mut conn, change).await?
    };
    let did_nothing = effect.jobs == Some(0);
    let effect = Effect::new(&effect, pending.taken_back());
    // A node without a claim is released all the same.
    if did_nothing && !matches!(change, Change::ReleaseNode { .. }) {
        return Err(WebError::Refused(effect.message));
    }
    Ok(effect)
}

//! Schedules: paused, resumed, fired by hand and removed.

use seriatim::admin;

use crate::action::Action;
use crate::action::change::Change;
use crate::action::effect::{Effect, Undo};
use crate::error::WebError;

pub(crate) async fn pause(change: &Change<'_>, schedule: &str) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    change.operator.pause_schedule(&mut *tx, schedule).await?;
    let resume = Action::ResumeSchedule { schedule: schedule.to_owned() };
    let undo = Some(Undo::new(resume, change.taken_back()));
    let paused = Effect::worded(&admin::Effect::SchedulePaused { schedule });
    change.end(tx, Effect { undo, ..paused }).await
}

pub(crate) async fn resume(change: &Change<'_>, schedule: &str) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    change.operator.resume_schedule(&mut *tx, schedule).await?;
    let pause = Action::PauseSchedule { schedule: schedule.to_owned() };
    let undo = Some(Undo::new(pause, change.taken_back()));
    let resumed = Effect::worded(&admin::Effect::ScheduleResumed { schedule });
    change.end(tx, Effect { undo, ..resumed }).await
}

pub(crate) async fn fire(change: &Change<'_>, schedule: &str) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let job = change.operator.fire_schedule(&mut *tx, schedule).await?;
    let job = (!change.dry_run).then_some(job);
    let fired = Effect::worded(&admin::Effect::ScheduleFired { schedule, job });
    change.end(tx, Effect { jobs: Some(1), ..fired }).await
}

pub(crate) async fn remove(change: &Change<'_>, schedule: &str) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    change.operator.remove_schedule(&mut *tx, schedule).await?;
    change.end(tx, Effect::worded(&admin::Effect::ScheduleRemoved { schedule })).await
}

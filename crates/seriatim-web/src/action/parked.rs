//! Parked jobs, redriven or discarded.

use seriatim::admin;

use crate::action::change::Change;
use crate::action::effect::Effect;
use crate::error::WebError;

pub(crate) async fn redrive(
    change: &Change<'_>,
    queue: &str,
    group: &str,
    job: Option<i64>,
) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let redriven = change.operator.redrive_parked(&mut *tx, queue, group, job).await?;
    let message = format!("Group {group:?}: {redriven}.");
    change.end(tx, Effect::redriven(message, redriven)).await
}

pub(crate) async fn discard(
    change: &Change<'_>,
    queue: &str,
    group: &str,
    job: Option<i64>,
) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    let jobs = change.operator.discard_parked(&mut *tx, queue, group, job).await?;
    let discarded = Effect::worded(&admin::Effect::ParkedDiscarded { queue, group, jobs });
    change.end(tx, Effect { jobs: Some(jobs), ..discarded }).await
}

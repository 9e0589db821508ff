//! Batches that are given up.

use seriatim::admin;

use crate::action::change::Change;
use crate::action::effect::Effect;
use crate::error::WebError;

pub(crate) async fn abandon(change: &Change<'_>, batch: i64) -> Result<Effect, WebError> {
    let mut tx = change.begin().await?;
    if !change.operator.abandon_batch(&mut *tx, batch).await? {
        return Err(WebError::Refused(format!("batch {batch} has ended already")));
    }
    let abandoned = Effect::worded(&admin::Effect::BatchAbandoned { batch });
    change.end(tx, abandoned).await
}

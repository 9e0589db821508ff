//! The release of a node that is gone.

use crate::action::change::Change;
use crate::action::effect::Effect;
use crate::error::WebError;

pub(crate) async fn release(change: &Change<'_>, node: &str) -> Result<Effect, WebError> {
    if node.contains('\0') {
        return Err(WebError::BadRequest(String::from("The name of a node has no NUL.")));
    }
    let mut tx = change.begin().await?;
    let released = change.operator.release_node(&mut *tx, node).await?;
    change.end(tx, Effect::new(format!("Node {node:?}: {released}."))).await
}

//! The release of a node that is gone.

use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::effect::Effect;

impl Operator {
    pub(super) async fn act_release_node(
        &self,
        conn: &mut PgConnection,
        node: &str,
    ) -> Result<Effect, ControlError> {
        let released = self.release_node(&mut *conn, node).await?;
        let claims = released.groups + released.jobs;
        Ok(Effect::new(format!("node {node:?}: {released}")).jobs(claims).with_all(&released))
    }
}

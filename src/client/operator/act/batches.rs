//! Batches that are given up.

use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::effect::Effect;

impl Operator {
    pub(super) async fn act_abandon_batch(
        &self,
        conn: &mut PgConnection,
        batch: i64,
    ) -> Result<Effect, ControlError> {
        if !self.abandon_batch(&mut *conn, batch).await? {
            return Err(ControlError::BatchEnded { batch });
        }
        let sentence = format!("batch {batch} is abandoned: no follow-up comes; its jobs stay");
        Ok(Effect::new(sentence))
    }
}

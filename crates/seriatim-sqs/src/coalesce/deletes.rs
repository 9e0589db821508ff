//! Deletes: the receipts of several requests are acked in one statement.

use seriatim::{Client, Receipt, ReceiveError};
use sqlx::PgPool;

use crate::coalesce::Statement;
use crate::database::{is_undone, refusal};
use crate::error::SqsError;

/// Acks jobs, in a role.
pub(crate) struct Deletes {
    pub(crate) client: Client,
    pub(crate) pool: PgPool,
}

impl Statement for Deletes {
    type Asked = Vec<Receipt>;
    /// What each receipt came to.
    type Answer = Vec<Result<(), ReceiveError>>;
    type Error = ReceiveError;

    /// A receipt whose rows another transaction has is given up after half a second in any case.
    async fn run(
        &self,
        asked: &[Vec<Receipt>],
        _patient: bool,
    ) -> Result<Vec<Self::Answer>, ReceiveError> {
        let receipts = asked.concat();
        let mut done = self.client.ack_many(&self.pool, &receipts).await?.into_iter();
        Ok(asked.iter().map(|of| done.by_ref().take(of.len()).collect()).collect())
    }

    fn is_undone(error: &ReceiveError) -> bool {
        is_undone(error)
    }

    fn refusal(error: ReceiveError) -> SqsError {
        refusal(error)
    }
}

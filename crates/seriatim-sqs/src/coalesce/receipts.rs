//! Deletes and changes of visibility: the receipts of several requests are settled in one
//! statement.

use std::time::Duration;

use seriatim::Client;
use seriatim::receive::{Receipt, ReceiveError};
use sqlx::PgPool;

use crate::coalesce::Statement;
use crate::database::{is_undone, refusal};
use crate::error::SqsError;

/// The way to settle receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Settling {
    Delete,
    /// Give the messages back at once.
    Return,
    /// Keep the messages for this long from now on.
    Extend(Duration),
}

/// Settles receipts in one way, in a role.
pub(crate) struct Receipts {
    pub(crate) client: Client,
    pub(crate) pool: PgPool,
    pub(crate) settling: Settling,
}

impl Statement for Receipts {
    type Asked = Vec<Receipt>;
    /// The outcome per receipt.
    type Answer = Vec<Result<(), ReceiveError>>;
    type Error = ReceiveError;

    /// A receipt whose rows another transaction has is given up after half a second in any case.
    async fn run(
        &self,
        asked: &[Vec<Receipt>],
        _patient: bool,
    ) -> Result<Vec<Self::Answer>, ReceiveError> {
        let receipts = asked.concat();
        let done = match self.settling {
            Settling::Delete => self.client.ack_many(&self.pool, &receipts).await?,
            Settling::Return => {
                self.client.nack_many(&self.pool, &receipts, Duration::ZERO).await?
            }
            Settling::Extend(time) => self.client.extend_many(&self.pool, &receipts, time).await?,
        };
        let mut done = done.into_iter();
        Ok(asked.iter().map(|of| done.by_ref().take(of.len()).collect()).collect())
    }

    fn is_undone(error: &ReceiveError) -> bool {
        is_undone(error)
    }

    fn refusal(error: ReceiveError) -> SqsError {
        refusal(error)
    }
}

//! Receives: requests that want the same of a queue are answered by one claim, with no group in two
//! of the answers.

use std::sync::Arc;
use std::time::Duration;

use seriatim::receive::{Receive, ReceiveError, Received};
use sqlx::PgPool;

use crate::coalesce::Statement;
use crate::database::{Database, is_undone, refusal};
use crate::error::SqsError;
use crate::waiting::Waiting;

/// The parameters of a receive. Requests with equal parameters share a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Receiving {
    pub(crate) queue: String,
    pub(crate) most: u32,
    pub(crate) visibility: Duration,
    /// The messages of one group come first, then those of the next.
    pub(crate) together: bool,
    /// Repetitions of a request have the same one, and the same answer.
    pub(crate) attempt_id: Option<String>,
}

impl Receiving {
    /// Returns the call for so many requests. With an attempt id it is for one request only.
    fn receive(&self, requests: u32) -> Receive {
        let what = Receive::new(&self.queue)
            .max(self.most)
            .visibility(self.visibility)
            .together(self.together);
        match &self.attempt_id {
            Some(id) => what.attempt_id(id),
            None => what.requests(requests),
        }
    }
}

/// Receives for requests that want the same, in a role.
pub(crate) struct Receives {
    pub(crate) database: Arc<Database>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) pool: PgPool,
    pub(crate) receiving: Receiving,
}

impl Statement for Receives {
    type Asked = ();
    type Answer = Vec<Received>;
    type Error = ReceiveError;

    /// Two would pass by each other's groups, and half as many requests would share a claim.
    const AT_ONCE: usize = 1;

    /// A statement may bring less than there is, as its bytes are limited. So those without an
    /// answer ask again, until it brings nothing.
    async fn run(&self, asked: &[()], _patient: bool) -> Result<Vec<Vec<Received>>, ReceiveError> {
        let most = usize::try_from(self.receiving.most).unwrap_or(1).max(1);
        let mut answers = Vec::with_capacity(asked.len());
        while answers.len() < asked.len() {
            let requests = u32::try_from(asked.len() - answers.len()).unwrap_or(1);
            let what = self.receiving.receive(requests);
            let mut received = match self.database.client.receive(&self.pool, what).await {
                Ok(received) => received,
                // Messages received before the error stay claimed, and are answered.
                Err(error) if answers.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "requests to receive are answered with nothing");
                    break;
                }
            };
            if received.is_empty() {
                break;
            }
            while !received.is_empty() {
                let behind = received.split_off(most.min(received.len()));
                answers.push(std::mem::replace(&mut received, behind));
            }
        }
        answers.resize_with(asked.len(), Vec::new);
        Ok(answers)
    }

    fn is_undone(error: &ReceiveError) -> bool {
        is_undone(error)
    }

    fn refusal(error: ReceiveError) -> SqsError {
        refusal(error)
    }

    /// Gives the messages back at once, but for those of an attempt id: a repetition gets them, and
    /// another request may have got them already.
    async fn undo(&self, unseen: Vec<Vec<Received>>) {
        if self.receiving.attempt_id.is_some() {
            return;
        }
        let unseen = unseen.concat();
        if let Err(error) = self.database.release(&self.pool, &unseen).await {
            tracing::warn!(%error, "messages for a client that hung up wait for their visibility");
        }
        self.waiting.wake(&self.receiving.queue);
    }
}

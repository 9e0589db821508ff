//! Receives: requests that want the same of a queue are answered by one claim, with no group in two
//! of the answers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use seriatim::receive::{Receive, ReceiveError, Received};
use sqlx::PgPool;

use crate::answers::Answers;
use crate::coalesce::Statement;
use crate::database::{Database, is_undone, refusal};
use crate::error::SqsError;
use crate::memory::Taken;
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

/// A job that was received, with the memory that it takes.
pub(crate) struct Message {
    pub(crate) job: Received,
    pub(crate) memory: Taken,
}

impl Statement for Receives {
    /// The budget of its answer.
    type Asked = Answers;
    type Answer = Vec<Message>;
    type Error = ReceiveError;

    /// Two would pass by each other's groups, and half as many requests would share a claim.
    const AT_ONCE: usize = 1;

    /// A claim brings less than there is, as its bytes are limited. So those without an answer ask
    /// again, until one brings nothing. While there is no memory for answers nothing is claimed.
    async fn run(
        &self,
        asked: &[Answers],
        _patient: bool,
    ) -> Result<Vec<Vec<Message>>, ReceiveError> {
        let (most, mut given) = (self.receiving.most.max(1) as usize, Vec::new());
        if let Some(answers) = asked.first()
            && answers.room().await.is_ok()
        {
            let requests = u32::try_from(asked.len()).unwrap_or(1);
            let what = self.receiving.receive(requests);
            let received = self.database.client.receive(&self.pool, what).await?;
            let with_memory = |job| Message { memory: answers.take(size(&job)), job };
            let mut received: Vec<Message> = received.into_iter().map(with_memory).collect();
            while !received.is_empty() {
                let behind = received.split_off(most.min(received.len()));
                given.push(std::mem::replace(&mut received, behind));
            }
        }
        if given.is_empty() {
            given.resize_with(asked.len(), Vec::new);
        }
        Ok(given)
    }

    fn is_undone(error: &ReceiveError) -> bool {
        is_undone(error)
    }

    fn refusal(error: ReceiveError) -> SqsError {
        refusal(error)
    }

    /// Gives the messages back at once, but for those of an attempt id: a repetition gets them, and
    /// another request may have got them already.
    async fn undo(&self, unseen: Vec<Vec<Message>>) {
        if self.receiving.attempt_id.is_some() {
            return;
        }
        let unseen: Vec<Received> =
            unseen.into_iter().flatten().map(|message| message.job).collect();
        if let Err(error) = self.database.release(&self.pool, &unseen).await {
            tracing::warn!(%error, "messages for a client that hung up wait for their visibility");
        }
        self.waiting.wake(&self.receiving.queue);
    }
}

/// Returns about how much memory a job takes.
fn size(job: &Received) -> usize {
    let text = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
    let attributes = job.attributes.as_ref().map_or(0, size_of_json);
    let data = size_of_json(&job.data) + job.data_text().len();
    size_of::<Received>() + text(&job.payload) + data + attributes
}

fn size_of_json(value: &Value) -> usize {
    let of_parts = match value {
        Value::String(text) => text.len(),
        Value::Array(elements) => elements.iter().map(size_of_json).sum(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + size_of_json(value)).sum()
        }
        _ => 0,
    };
    size_of::<Value>() + of_parts
}

//! The operations: each from its input to its result.

mod batch;
mod delete;
mod permissions;
mod queues;
mod receive;
mod send;
mod tasks;

use std::sync::Arc;

use serde_json::Value;
use sqlx::PgPool;

use crate::auth::Caller;
use crate::database::Database;
use crate::error::{Code, SqsError};
use crate::input::{self, queue_of};
use crate::protocol::Call;
use crate::queue::Queue;
use crate::waiting::Waiting;

/// What all requests share.
pub(crate) struct Service {
    pub(crate) database: Database,
    pub(crate) waiting: Waiting,
    pub(crate) account: String,
}

/// One request: who asks, and under which address.
pub(crate) struct Request {
    pub(crate) service: Arc<Service>,
    pub(crate) caller: Caller,
    /// What queues' addresses begin with, such as `http://localhost:9324`.
    pub(crate) base: String,
}

impl Request {
    /// Does what is asked for. Returns the result; `null` if the operation has none.
    pub(crate) async fn answer(&self, call: Call) -> Result<Value, SqsError> {
        let Call { operation, input } = call;
        match operation.as_str() {
            "CreateQueue" => self.create_queue(input::read(input)?).await,
            "DeleteQueue" => self.delete_queue(input::read(input)?).await,
            "GetQueueUrl" => self.get_queue_url(input::read(input)?).await,
            "ListQueues" => self.list_queues(input::read(input)?).await,
            "ListDeadLetterSourceQueues" => self.list_sources(input).await,
            "GetQueueAttributes" => self.get_queue_attributes(input::read(input)?).await,
            "SetQueueAttributes" => self.set_queue_attributes(input::read(input)?).await,
            "TagQueue" => self.tag_queue(input::read(input)?).await,
            "UntagQueue" => self.untag_queue(input::read(input)?).await,
            "ListQueueTags" => self.list_queue_tags(input::read(input)?).await,
            "PurgeQueue" => self.purge_queue(input::read(input)?).await,
            "SendMessage" => self.send_message(input::read(input)?).await,
            "SendMessageBatch" => self.send_message_batch(input::read(input)?).await,
            "ReceiveMessage" => self.receive_message(input::read(input)?).await,
            "DeleteMessage" => self.delete_message(input::read(input)?).await,
            "DeleteMessageBatch" => self.delete_message_batch(input::read(input)?).await,
            "ChangeMessageVisibility" => self.change_visibility(input::read(input)?).await,
            "ChangeMessageVisibilityBatch" => {
                self.change_visibility_batch(input::read(input)?).await
            }
            "StartMessageMoveTask" => self.start_move_task(input::read(input)?).await,
            "CancelMessageMoveTask" => self.cancel_move_task(input::read(input)?).await,
            "ListMessageMoveTasks" => self.list_move_tasks(input::read(input)?).await,
            "AddPermission" => self.add_permission(input::read(input)?).await,
            "RemovePermission" => self.remove_permission(input::read(input)?).await,
            other => {
                let message = format!("The action {other} is not valid for this endpoint.");
                Err(SqsError::new(Code::InvalidAction, message))
            }
        }
    }

    fn database(&self) -> &Database {
        &self.service.database
    }

    /// The pool of the caller's role.
    fn pool(&self) -> PgPool {
        self.database().pool_of(&self.caller)
    }

    async fn queue(&self, url: Option<String>) -> Result<Queue, SqsError> {
        let name = queue_of(url)?;
        self.database().queue(&self.pool(), &name).await
    }

    fn url_of(&self, queue: &str) -> String {
        format!("{}/{}/{queue}", self.base, self.service.account)
    }

    fn arn_of(&self, queue: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{queue}", self.caller.region, self.service.account)
    }
}

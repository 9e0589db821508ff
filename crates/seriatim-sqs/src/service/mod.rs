//! The operations: each from its input to its result.

mod batch;
mod changes;
mod delete;
mod permissions;
mod queues;
mod receive;
mod send;
mod tasks;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use tasks::source_of_task;

use serde_json::Value;
use sqlx::{PgPool, PgTransaction};

use crate::answers::Answers;
use crate::caller::{Caller, QueueName};
use crate::coalesce::OfRole;
use crate::error::{Code, SqsError};
use crate::input::{self, queue_of};
use crate::memory::Taken;
use crate::patience::TRY;
use crate::protocol::Call;
use crate::queue::Queue;
use crate::servers::{Server, Servers};
use crate::waiting::Waiting;

/// Operations after which a queue is read again.
const CHANGES_QUEUE: [&str; 4] =
    ["SetQueueAttributes", "AddPermission", "RemovePermission", "DeleteQueue"];

/// As long as the answer of a list, or with the attributes of a queue, may be.
const LONG_ANSWER: usize = 128 * 1024;

/// The state that all requests share.
pub(crate) struct Service {
    pub(crate) servers: Servers,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) answers: Answers,
    pub(crate) account: String,
}

/// An operation at work.
type Answering<'a> = Pin<Box<dyn Future<Output = Result<Value, SqsError>> + Send + 'a>>;

/// One request: who asks, and under which address.
pub(crate) struct Request {
    pub(crate) service: Arc<Service>,
    pub(crate) caller: Caller,
    /// The base URL of queue addresses, such as `http://localhost:9324`.
    pub(crate) base: String,
    /// The trace that the request belongs to, as its header says.
    pub(crate) trace: Option<String>,
    /// The memory of its answer.
    memory: Mutex<Taken>,
}

impl Request {
    pub(crate) fn new(
        service: &Arc<Service>,
        caller: Caller,
        base: String,
        trace: Option<String>,
    ) -> Self {
        let memory = Mutex::new(service.answers.take(0));
        Self { service: Arc::clone(service), caller, base, trace, memory }
    }

    /// Returns the memory of the answer.
    pub(crate) fn into_memory(self) -> Taken {
        self.memory.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps memory for as long as the answer.
    fn keep(&self, memory: Taken) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).merge(memory);
    }

    /// Does what is asked for. Returns the result; `null` if the operation has none.
    pub(crate) async fn answer(&self, call: Call) -> Result<Value, SqsError> {
        let changes = CHANGES_QUEUE.contains(&&*call.operation);
        if call.operation.starts_with("List") || call.operation == "GetQueueAttributes" {
            self.keep(self.service.answers.begin(LONG_ANSWER).await?);
        }
        let answer = self.operation(call)?.await;
        if changes {
            self.servers().forget_queues();
        }
        answer
    }

    /// Reads the input of an operation. Each is as large as itself, and not as the largest of all:
    /// thousands of receives may wait.
    fn operation(&self, call: Call) -> Result<Answering<'_>, SqsError> {
        let Call { operation, input } = call;
        Ok(match operation.as_str() {
            "CreateQueue" => Box::pin(self.create_queue(input::read(input)?)),
            "DeleteQueue" => Box::pin(self.delete_queue(input::read(input)?)),
            "GetQueueUrl" => Box::pin(self.get_queue_url(input::read(input)?)),
            "ListQueues" => Box::pin(self.list_queues(input::read(input)?)),
            "ListDeadLetterSourceQueues" => Box::pin(self.list_sources(input)),
            "GetQueueAttributes" => Box::pin(self.get_queue_attributes(input::read(input)?)),
            "SetQueueAttributes" => Box::pin(self.set_queue_attributes(input::read(input)?)),
            "TagQueue" => Box::pin(self.tag_queue(input::read(input)?)),
            "UntagQueue" => Box::pin(self.untag_queue(input::read(input)?)),
            "ListQueueTags" => Box::pin(self.list_queue_tags(input::read(input)?)),
            "PurgeQueue" => Box::pin(self.purge_queue(input::read(input)?)),
            "SendMessage" => Box::pin(self.send_message(input::read(input)?)),
            "SendMessageBatch" => Box::pin(self.send_message_batch(input::read(input)?)),
            "ReceiveMessage" => Box::pin(self.receive_message(input::read(input)?)),
            "DeleteMessage" => Box::pin(self.delete_message(input::read(input)?)),
            "DeleteMessageBatch" => Box::pin(self.delete_message_batch(input::read(input)?)),
            "ChangeMessageVisibility" => Box::pin(self.change_visibility(input::read(input)?)),
            "ChangeMessageVisibilityBatch" => {
                Box::pin(self.change_visibility_batch(input::read(input)?))
            }
            "StartMessageMoveTask" => Box::pin(self.start_move_task(input::read(input)?)),
            "CancelMessageMoveTask" => Box::pin(self.cancel_move_task(input::read(input)?)),
            "ListMessageMoveTasks" => Box::pin(self.list_move_tasks(input::read(input)?)),
            "AddPermission" => Box::pin(self.add_permission(input::read(input)?)),
            "RemovePermission" => Box::pin(self.remove_permission(input::read(input)?)),
            other => {
                let message = format!("The action {other} is not valid for this endpoint.");
                return Err(SqsError::new(Code::InvalidAction, message));
            }
        })
    }

    fn servers(&self) -> &Servers {
        &self.service.servers
    }

    /// The pool of the caller's role.
    fn pool(&self, server: &Server) -> PgPool {
        server.pool_of(&self.caller)
    }

    /// The coalescers of the caller's role.
    fn coalescers(&self, server: &Server) -> Arc<OfRole> {
        server.coalescers_of(&self.caller)
    }

    /// Changes a queue on a server, by `once` until no other transaction has its row there, for 5 s
    /// at most.
    async fn until_free<T, Tried>(
        &self,
        server: &Server,
        queue: &str,
        once: impl FnMut() -> Tried,
    ) -> Result<T, SqsError>
    where
        Tried: Future<Output = Result<T, SqsError>>,
    {
        let names = BTreeSet::from([format!("queue {queue}")]);
        self.coalescers(server).patience.until_free(&names, once).await
    }

    /// Begins a transaction of [`until_free`](Self::until_free). It waits for locks briefly.
    async fn begin(&self, server: &Server) -> Result<PgTransaction<'static>, SqsError> {
        let mut tx = self.pool(server).begin().await?;
        let timeout = sqlx::query("select set_config('lock_timeout', $1, true)").bind(TRY);
        timeout.execute(&mut *tx).await?;
        Ok(tx)
    }

    async fn queue(&self, url: Option<String>) -> Result<Queue, SqsError> {
        self.queue_named(&self.name_of(url)?).await
    }

    /// Returns a queue, as the first server that answers has it.
    async fn queue_named(&self, name: &QueueName) -> Result<Queue, SqsError> {
        self.servers()
            .first(|server| async move { server.database.queue(&self.pool(server), name).await })
            .await
    }

    /// Returns a queue as messages need it.
    async fn recent_queue(&self, url: Option<String>) -> Result<Arc<Queue>, SqsError> {
        let name = self.name_of(url)?;
        self.servers()
            .first(|server| server.database.recent_queue(&self.caller, name.clone()))
            .await
    }

    /// Returns the name of the queue at an address.
    fn name_of(&self, url: Option<String>) -> Result<QueueName, SqsError> {
        self.caller.queue(queue_of(url, &self.service.account)?)
    }

    fn url_of(&self, queue: &str) -> String {
        format!("{}/{}/{queue}", self.base, self.service.account)
    }

    fn arn_of(&self, queue: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{queue}", self.caller.region, self.service.account)
    }
}

//! Tasks that move messages: from a dead-letter queue back to where they came from, or on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::database::MoveTask;
use crate::error::{Code, SqsError};
use crate::input::{CancelMoveTask, ListMoveTasks, StartMoveTask, in_range};
use crate::queue::Queue;
use crate::redrive::QueueArn;
use crate::servers::Server;
use crate::service::Request;

impl Request {
    pub(super) async fn start_move_task(&self, input: StartMoveTask) -> Result<Value, SqsError> {
        let rate = in_range(
            input.max_number_of_messages_per_second,
            "MaxNumberOfMessagesPerSecond",
            1..=500,
        )?;
        let server = self.only_server()?;
        let source = self.queue_of_arn(input.source_arn, "SourceArn").await?;
        let (pool, database) = (self.pool(server), &server.database);
        if database.sources_of(&pool, &source.name, "", 1, None).await?.is_empty() {
            return Err(refused("Source queue must be configured as a Dead Letter Queue."));
        }
        let target = match input.destination_arn.filter(|arn| !arn.is_empty()) {
            Some(arn) => Some(self.queue_of_arn(Some(arn), "DestinationArn").await?),
            None => self.caller.any_queue().map(|()| None)?,
        };
        if let Some(target) = &target {
            if target.name == source.name {
                return Err(refused("The source queue and the destination queue are the same."));
            } else if target.is_fifo() != source.is_fifo() {
                return Err(refused("The destination queue must be of the source queue's type."));
            }
        }
        let target = target.as_ref().map(|target| &*target.name);
        let actor = self.caller.actor();
        let started = database.start_move_task(&pool, &source.name, target, rate, actor).await?;
        let task = started.ok_or_else(|| {
            refused(
                "There is already a task running. Only one active task is allowed for a source \
                 queue arn at a given time.",
            )
        })?;
        Ok(json!({"TaskHandle": handle(task, &self.arn_of(&source.name))}))
    }

    /// Ends a task. Messages already moved stay moved.
    pub(super) async fn cancel_move_task(&self, input: CancelMoveTask) -> Result<Value, SqsError> {
        let handle = input.task_handle.ok_or_else(|| SqsError::missing("TaskHandle"))?;
        let (task, source) =
            read(&handle).ok_or_else(|| refused("Value for parameter TaskHandle is invalid."))?;
        let server = self.only_server()?;
        let source = self.queue_of_arn(Some(source), "SourceArn").await?;
        let moved = match task {
            Some(task) => {
                let (actor, shown) = (self.caller.actor(), self.caller.shown());
                server
                    .database
                    .cancel_move_task(&self.pool(server), task, &source.name, actor, shown)
                    .await?
            }
            None => None,
        };
        let moved =
            moved.ok_or_else(|| SqsError::new(Code::ResourceNotFound, "Task does not exist."))?;
        Ok(json!({"ApproximateNumberOfMessagesMoved": moved}))
    }

    /// Lists the tasks of a source queue, the newest first.
    pub(super) async fn list_move_tasks(&self, input: ListMoveTasks) -> Result<Value, SqsError> {
        let most = in_range(input.max_results, "MaxResults", 1..=10)?.unwrap_or(1);
        let server = self.only_server()?;
        let source = self.queue_of_arn(input.source_arn, "SourceArn").await?;
        let (pool, shown) = (self.pool(server), self.caller.shown());
        let tasks = server.database.move_tasks(&pool, &source.name, most, shown).await?;
        let arn = self.arn_of(&source.name);
        let shown: Vec<Value> = tasks.iter().map(|task| self.shown(task, &arn)).collect();
        Ok(json!({ "Results": shown }))
    }

    fn shown(&self, task: &MoveTask, source: &str) -> Value {
        let mut shown = json!({
            "SourceArn": source,
            "Status": task.status.to_uppercase(),
            "ApproximateNumberOfMessagesMoved": task.moved,
            "ApproximateNumberOfMessagesToMove": task.to_move,
            "StartedTimestamp": task.started_at.timestamp_millis(),
        });
        if task.status == "running" {
            shown["TaskHandle"] = handle(task.id, source).into();
        }
        if let Some(target) = &task.to_queue {
            shown["DestinationArn"] = self.arn_of(target).into();
        }
        if let Some(rate) = task.per_second {
            shown["MaxNumberOfMessagesPerSecond"] = rate.into();
        }
        if let Some(failure) = &task.failure {
            shown["FailureReason"] = failure.clone().into();
        }
        shown
    }

    /// Returns the server that has the tasks: each of several would have its own.
    fn only_server(&self) -> Result<&Server, SqsError> {
        self.servers().only().ok_or_else(|| {
            let message = "Move tasks are not started, ended or listed over several servers. An \
                           operator starts one on each: seriatim move-task start --shard N.";
            SqsError::new(Code::UnsupportedOperation, message)
        })
    }

    async fn queue_of_arn(&self, arn: Option<String>, parameter: &str) -> Result<Queue, SqsError> {
        let arn = arn.ok_or_else(|| SqsError::missing(parameter))?;
        let Some(queue) = QueueArn::read(&arn) else {
            return Err(refused(&format!(
                "You must use this format to specify the {parameter}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            )));
        };
        let found = if queue.account == self.service.account {
            let name = self.caller.queue(queue.name.to_owned())?;
            self.queue_named(&name).await
        } else {
            Err(SqsError::no_queue())
        };
        found.map_err(|error| match error.code {
            Code::QueueDoesNotExist => SqsError::new(
                Code::ResourceNotFound,
                format!(
                    "The resource that you specified for the {parameter} parameter doesn't exist."
                ),
            ),
            _ => error,
        })
    }
}

fn refused(message: &str) -> SqsError {
    SqsError::new(Code::InvalidParameterValue, message)
}

/// Returns a handle in the form that AWS has: base64 of JSON with a UUID, here of the task's
/// number.
fn handle(task: i64, source: &str) -> String {
    let task = Uuid::from_u128(u128::from(task.unsigned_abs()));
    BASE64.encode(json!({"taskId": task.to_string(), "sourceArn": source}).to_string())
}

/// Reads a handle: the number of the task, or `None` if no task has it; and the source queue.
fn read(handle: &str) -> Option<(Option<i64>, String)> {
    let parts: Value = serde_json::from_slice(&BASE64.decode(handle).ok()?).ok()?;
    let task = Uuid::parse_str(parts["taskId"].as_str()?).ok()?;
    Some((i64::try_from(task.as_u128()).ok(), parts["sourceArn"].as_str()?.to_owned()))
}

/// Returns the ARN of the source queue that a handle names.
pub(crate) fn source_of_task(handle: &str) -> Option<String> {
    read(handle).map(|(_, source)| source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_as_they_were_written() {
        let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
        assert_eq!(read(&handle(7, arn)), Some((Some(7), arn.to_owned())));
        let of = |json: Value| read(&BASE64.encode(json.to_string()));
        let other = json!({"taskId": "10f57157-fc38-4da9-a113-4de7e12d05aa", "sourceArn": arn});
        assert_eq!(of(other), Some((None, arn.to_owned())));
        for odd in [json!({}), json!({"taskId": "7", "sourceArn": arn}), json!([])] {
            assert_eq!(of(odd.clone()), None, "{odd}");
        }
        assert_eq!(read("foobared"), None);
        assert_eq!(read("?"), None);
    }
}

//! Sends: messages become jobs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::coalesce::{NewMessage, Sending, Sent};
use crate::digest;
use crate::error::{Code, SqsError};
use crate::input::{Batch, Number, Outgoing, SendMessage};
use crate::message::{
    self, AttributeValue, SIZE_LIMIT, TRACE_HEADER, attributes_to_json, check_attributes,
    check_body, check_id, check_system_attributes,
};
use crate::message_id::MessageId;
use crate::queue::Queue;
use crate::servers::Server;
use crate::service::{Request, batch};

/// The header of a job with the group of a message of a standard queue, where it is no order.
pub(super) const FAIRNESS_GROUP: &str = "MessageGroupId";

/// A message that may be sent, and what its sender is told.
struct Checked {
    message: NewMessage,
    answer: Value,
}

impl Request {
    pub(super) async fn send_message(&self, input: SendMessage) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        check_order(&queue, &input.message)?;
        let mut checked = check(&queue, input.message, "are invalid")?;
        self.trace(&mut checked.message);
        let sent = self.send(&queue, vec![checked.message]).await?.pop();
        add_ids(&mut checked.answer, &queue, sent.ok_or(sqlx::Error::RowNotFound)??);
        Ok(checked.answer)
    }

    pub(super) async fn send_message_batch(
        &self,
        input: Batch<Outgoing>,
    ) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        batch::check(&input.entries, "SendMessageBatchRequestEntry")?;
        let size: usize = input.entries.iter().map(|entry| entry.of.size()).sum();
        if size > SIZE_LIMIT {
            let message = format!(
                "Batch requests cannot be longer than {SIZE_LIMIT} bytes. You have sent {size} \
                 bytes."
            );
            return Err(SqsError::new(Code::BatchRequestTooLong, message));
        }
        let (mut messages, mut answers) = (Vec::new(), Vec::new());
        for entry in input.entries {
            // AWS refuses the whole batch for these two, and calls both invalid.
            check_order(&queue, &entry.of)
                .map_err(|error| SqsError::new(Code::InvalidParameterValue, error.message))?;
            let checked = check(&queue, entry.of, "cannot be validated");
            let answer = checked.map(|mut checked| {
                self.trace(&mut checked.message);
                messages.push(checked.message);
                checked.answer
            });
            answers.push((entry.id, answer));
        }
        let sent = if messages.is_empty() { vec![] } else { self.send(&queue, messages).await? };
        let accepted = answers.iter_mut().filter(|(_, answer)| answer.is_ok());
        for ((_, answer), sent) in accepted.zip(sent) {
            match (answer.as_mut(), sent) {
                (Ok(answer), Ok(sent)) => add_ids(answer, &queue, sent),
                (_, Err(error)) => *answer = Err(error),
                (Err(_), _) => {}
            }
        }
        Ok(batch::answer(answers))
    }

    /// Gives a message that has no trace of its own the one of the request.
    fn trace(&self, message: &mut NewMessage) {
        let Some(trace) = &self.trace else { return };
        if !message.headers.iter().any(|(name, _)| *name == TRACE_HEADER) {
            message.headers.push((TRACE_HEADER, trace.clone()));
        }
    }

    /// Sends messages: each with a group to the server of the group, the others together to any.
    async fn send(
        &self,
        queue: &Queue,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Sent, SqsError>>, SqsError> {
        let (servers, any) = (self.servers(), self.servers().any(&queue.name));
        let on = |message: &NewMessage| {
            message.group.as_deref().map_or(any, |group| servers.of_group(group))
        };
        let messages = messages.into_iter().map(|message| (on(&message), message)).collect();
        servers.each(messages, |server, messages| self.send_to(server, queue, messages)).await
    }

    /// Refuses a queue that is not on one of several servers: its settings of jobs are not, either.
    async fn check_queue_on(
        &self,
        server: &Server,
        queue: &Queue,
        shard: u16,
    ) -> Result<(), SqsError> {
        let name = self.caller.queue(queue.name.clone())?;
        match server.database.recent_queue(&self.caller, name).await {
            Err(error) if error.code == Code::QueueDoesNotExist => {
                let message = format!("The queue is not on shard {shard} yet: create it again.");
                Err(SqsError::new(Code::QueueDoesNotExist, message))
            }
            found => found.map(drop),
        }
    }

    async fn send_to(
        &self,
        server: &Server,
        queue: &Queue,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Sent, SqsError>>, SqsError> {
        if let Some(shard) = server.number() {
            self.check_queue_on(server, queue, shard).await?;
        }
        let retention = queue.number("MessageRetentionPeriod").unsigned_abs();
        let sending = Sending {
            queue: queue.name.clone(),
            retention: Duration::from_secs(retention),
            ids_of_groups: queue.dedups_by_group(),
            messages,
        };
        self.coalescers(server).sends.ask(sending).await
    }
}

/// Checks a message for a queue. For a message that is too large, AWS words the error differently
/// in batches: hence `too_large`.
fn check(queue: &Queue, given: Outgoing, too_large: &str) -> Result<Checked, SqsError> {
    let body = check_body(given.message_body)?;
    let attributes = check_attributes(given.message_attributes)?;
    let system = check_system_attributes(given.message_system_attributes)?;
    let size = message::size(&body, &attributes);
    let limit = queue.number("MaximumMessageSize");
    if i64::try_from(size).is_ok_and(|size| size > limit) {
        let message = format!(
            "One or more parameters {too_large}. Reason: Message must be shorter than {limit} \
             bytes."
        );
        return Err(SqsError::new(Code::InvalidParameterValue, message));
    }
    let (group, dedup_id) = (given.message_group_id, given.message_deduplication_id);
    for (id, parameter) in [(&group, "MessageGroupId"), (&dedup_id, "MessageDeduplicationId")] {
        if let Some(id) = id {
            check_id(id, parameter)?;
        }
    }
    let delay = check_delay(queue, given.delay_seconds)?;

    let mut headers = Vec::new();
    if let Some(AttributeValue::Text(trace)) = system.get(TRACE_HEADER).map(|header| &header.value)
    {
        headers.push((TRACE_HEADER, trace.clone()));
    }
    let (mut ordered_by, mut unique_by) = (None, None);
    if queue.is_fifo() {
        (ordered_by, unique_by) = (group, dedup_id);
    } else if let Some(dedup_id) = dedup_id {
        let reason = "The request include parameter that is not valid for this queue type";
        return Err(SqsError::invalid(dedup_id, "MessageDeduplicationId", reason));
    } else if let Some(group) = group {
        headers.push((FAIRNESS_GROUP, group));
    }

    let mut answer = json!({"MD5OfMessageBody": digest::of_body(&body)});
    if !attributes.is_empty() {
        answer["MD5OfMessageAttributes"] = digest::of_attributes(&attributes).into();
    }
    if !system.is_empty() {
        answer["MD5OfMessageSystemAttributes"] = digest::of_attributes(&system).into();
    }
    let message = NewMessage {
        body,
        group: ordered_by,
        dedup_id: unique_by,
        delay: delay.map(|seconds| Duration::from_secs(seconds.unsigned_abs())),
        headers,
        attributes: attributes_to_json(&attributes),
    };
    Ok(Checked { message, answer })
}

/// Refuses a message of a FIFO queue without a group, or without anything that makes it unique.
fn check_order(queue: &Queue, given: &Outgoing) -> Result<(), SqsError> {
    if !queue.is_fifo() {
        return Ok(());
    }
    if given.message_group_id.is_none() {
        return Err(SqsError::missing("MessageGroupId"));
    }
    if given.message_deduplication_id.is_none() && !queue.dedups_by_content() {
        let message = "The queue should either have ContentBasedDeduplication enabled or \
                       MessageDeduplicationId provided explicitly";
        return Err(SqsError::new(Code::InvalidParameterValue, message));
    }
    Ok(())
}

/// Returns the delay of a message; `None`: that of the queue, as always in a FIFO queue.
fn check_delay(queue: &Queue, given: Option<Number>) -> Result<Option<i64>, SqsError> {
    let Some(Number(delay)) = given else { return Ok(None) };
    if queue.is_fifo() {
        if delay == 0 {
            return Ok(None);
        }
        let reason = "The request include parameter that is not valid for this queue type.";
        return Err(SqsError::invalid(delay, "DelaySeconds", reason));
    }
    if (0..=900).contains(&delay) {
        return Ok(Some(delay));
    }
    Err(SqsError::invalid(delay, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900."))
}

fn add_ids(answer: &mut Value, queue: &Queue, sent: Sent) {
    answer["MessageId"] = MessageId::new(sent.id, sent.created_us).to_string().into();
    if queue.is_fifo() {
        answer["SequenceNumber"] = sequence_number(sent.id).into();
    }
}

/// Returns the number of a message of a FIFO queue: a later one has a higher one.
pub(super) fn sequence_number(id: i64) -> String {
    format!("{id:020}")
}

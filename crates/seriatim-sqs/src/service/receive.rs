//! Receives: jobs become messages.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use seriatim::receive::Received;

use crate::auth::check_key;
use crate::coalesce::{Message, Receiving};
use crate::digest;
use crate::error::{Code, SqsError};
use crate::input::{ReceiveMessage, in_range};
use crate::message::{
    self, Attributes, TRACE_HEADER, attributes_of_job, attributes_to_json, check_id,
};
use crate::message_id::MessageId;
use crate::queue::Queue;
use crate::service::Request;
use crate::service::send::{FAIRNESS_GROUP, sequence_number};

/// The most names of attributes: a request that waits keeps them.
const NAMES: usize = 100;

/// The attributes of a message that a client asks for.
struct Wanted {
    system: Vec<String>,
    attributes: Vec<String>,
}

impl Request {
    pub(super) async fn receive_message(&self, input: ReceiveMessage) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        let names = [
            &input.attribute_names,
            &input.message_system_attribute_names,
            &input.message_attribute_names,
        ];
        if names.iter().any(|names| names.len() > NAMES) {
            let message = format!("At most {NAMES} names of attributes are allowed.");
            return Err(SqsError::new(Code::InvalidParameterValue, message));
        }
        let most = in_range(input.max_number_of_messages, "MaxNumberOfMessages", 1..=10)?;
        let visibility = in_range(input.visibility_timeout, "VisibilityTimeout", 0..=43_200)?;
        let wait = in_range(input.wait_time_seconds, "WaitTimeSeconds", 0..=20)?;
        let seconds = |number: Option<i64>, setting| {
            let seconds = number.unwrap_or_else(|| queue.number(setting));
            Duration::from_secs(seconds.unsigned_abs())
        };
        let attempt_id = input.receive_request_attempt_id.filter(|_| queue.is_fifo());
        if let Some(id) = &attempt_id {
            check_id(id, "ReceiveRequestAttemptId")?;
        }
        let receiving = Receiving {
            queue: queue.name.clone(),
            most: most.and_then(|most| most.try_into().ok()).unwrap_or(1),
            visibility: seconds(visibility, "VisibilityTimeout"),
            together: queue.is_fifo(),
            attempt_id,
        };
        // A repetition has its own answer, also if the queue has nothing more.
        let is_own = receiving.attempt_id.is_some();
        let wait = seconds(wait, "ReceiveMessageWaitTimeSeconds");
        let ask = || self.claim(&receiving);
        let mut received = vec![];
        if wait.is_zero() || is_own {
            received = ask().await?;
        }
        if received.is_empty() && !wait.is_zero() {
            received = self.service.waiting.until_any(&queue.name, wait, ask).await?;
        }
        let mut system = input.attribute_names;
        system.extend(input.message_system_attribute_names);
        let wanted = Wanted { system, attributes: input.message_attribute_names };
        let messages = received.into_iter().map(|Message { job, memory }| {
            self.keep(memory);
            self.message(&queue, job, &wanted)
        });
        let messages = messages.collect::<Result<Vec<Value>, SqsError>>()?;
        Ok(if messages.is_empty() { json!({}) } else { json!({ "Messages": messages }) })
    }

    /// Claims jobs on the first server, in turn, that has some. If the client has hung up
    /// meanwhile, they are given back at once. The key may have been removed or disabled since the
    /// request began to wait. Nothing is claimed that there is no memory for.
    async fn claim(&self, receiving: &Receiving) -> Result<Vec<Message>, SqsError> {
        check_key(self.servers(), &self.caller).await?;
        self.service.answers.room().await?;
        let claim = |server| async move {
            let answers = self.service.answers.clone();
            self.coalescers(server).receives(receiving).ask(answers).await
        };
        self.servers().find(&receiving.queue, receiving.attempt_id.as_deref(), claim).await
    }

    fn message(
        &self,
        queue: &Queue,
        mut job: Received,
        wanted: &Wanted,
    ) -> Result<Value, SqsError> {
        let server = self.servers().of_job(job.id).ok_or_else(SqsError::unavailable)?;
        let payload = job.payload.take();
        let body = body(job.data_text(), payload);
        let mut message = json!({
            "MessageId": MessageId::new(job.id, job.enqueued_at.timestamp_micros()).to_string(),
            "ReceiptHandle": server.database.handles()?.sign(&queue.name, &job.receipt),
            "MD5OfBody": digest::of_body(&body),
            "Body": body,
        });
        let system = self.system_attributes(queue, &job);
        let is_wanted = |name: &String| wanted.system.iter().any(|of| of == name || of == "All");
        let system: Map<_, _> = system.into_iter().filter(|(name, _)| is_wanted(name)).collect();
        if !system.is_empty() {
            message["Attributes"] = Value::Object(system);
        }
        let mut attributes: Attributes = attributes_of_job(job.attributes.as_ref());
        attributes.retain(|name, _| is_matched(name, &wanted.attributes));
        if !attributes.is_empty() {
            message["MD5OfMessageAttributes"] = digest::of_attributes(&attributes).into();
            message["MessageAttributes"] = attributes_to_json(&attributes).into();
        }
        Ok(message)
    }

    fn system_attributes(&self, queue: &Queue, job: &Received) -> Map<String, Value> {
        let mut known = Map::new();
        let mut add = |name: &str, value: String| known.insert(name.to_owned(), value.into());
        add("SenderId", self.service.account.clone());
        add("SentTimestamp", job.enqueued_at.timestamp_millis().to_string());
        add("ApproximateReceiveCount", job.attempt.to_string());
        let first = job.first_received_at.timestamp_millis();
        add("ApproximateFirstReceiveTimestamp", first.to_string());
        let group = job.group.as_ref().or_else(|| job.headers.get(FAIRNESS_GROUP));
        if let Some(group) = group {
            add("MessageGroupId", group.clone());
        }
        if queue.is_fifo() {
            add("SequenceNumber", sequence_number(job.id));
            if let Some(id) = &job.dedup_id {
                add("MessageDeduplicationId", id.clone());
            }
        }
        if let Some(source) = &job.moved_from {
            add("DeadLetterQueueSourceArn", self.arn_of(source));
        }
        if let Some(trace) = job.headers.get(TRACE_HEADER) {
            add(TRACE_HEADER, trace.clone());
        }
        known
    }
}

/// Returns the body of a message: its data's JSON, or its bytes, in base64 unless they are text
/// that a client could have sent. XML cannot hold other characters.
fn body(json: &str, payload: Option<Vec<u8>>) -> String {
    let Some(payload) = payload else {
        // JSON escapes control characters by itself.
        return if message::is_sendable(json) {
            json.to_owned()
        } else {
            json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
        };
    };
    match String::from_utf8(payload) {
        Ok(text) if message::is_sendable(&text) => text,
        Ok(text) => BASE64.encode(text),
        Err(error) => BASE64.encode(error.as_bytes()),
    }
}

/// Returns whether an attribute is asked for: by its name, or by what it begins with.
fn is_matched(name: &str, wanted: &[String]) -> bool {
    wanted.iter().any(|of| {
        let prefix = of.strip_suffix(".*").or_else(|| of.strip_suffix('*'));
        of == "All" || of == name || prefix.is_some_and(|prefix| name.starts_with(prefix))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{body, is_matched};

    #[test]
    fn a_body_is_text_that_a_client_could_send() {
        let of = |payload: &[u8]| body("null", Some(payload.to_vec()));
        assert_eq!(of("a\r\n\u{1f600}".as_bytes()), "a\r\n\u{1f600}");
        assert_eq!(of(b"a\x01"), "YQE=");
        assert_eq!(of("\u{fffe}".as_bytes()), "77++");
        assert_eq!(of(b"\xff\x00"), "/wA=");
        let data = json!({"a\u{1}\u{ffff}": "\u{fffe}"});
        let given = body(&data.to_string(), None);
        assert_eq!(given, r#"{"a\u0001\uffff":"\ufffe"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&given).unwrap(), data);
    }

    #[test]
    fn attributes_are_asked_for_by_name_or_beginning() {
        let asks = |wanted: &str| is_matched("Help.Me", &[wanted.to_owned()]);
        for wanted in ["All", ".*", "*", "Help.Me", "Help.*", "Hel*"] {
            assert!(asks(wanted), "{wanted}");
        }
        for other in ["", "Help", "help.*", "Me"] {
            assert!(!asks(other), "{other}");
        }
    }
}

//! The inputs of operations, by the names of the JSON protocol. Numbers of the Query protocol come
//! as text.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::{Code, SqsError};
use crate::message::GivenAttributes;

/// Reads an input.
pub(crate) fn read<T: DeserializeOwned>(input: Value) -> Result<T, SqsError> {
    serde_json::from_value(input).map_err(|error| {
        SqsError::new(Code::MalformedRequest, format!("The input cannot be read: {error}."))
    })
}

/// A whole number, or its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => number.as_i64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.map(Self).ok_or_else(|| D::Error::custom("a whole number is expected"))
    }
}

/// Settings or tags, by name.
pub(crate) type Texts = BTreeMap<String, String>;

/// The input of operations that name a queue and nothing else.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct OfQueue {
    pub(crate) queue_url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct CreateQueue {
    pub(crate) queue_name: Option<String>,
    pub(crate) attributes: Texts,
    #[serde(rename = "tags", alias = "Tags")]
    pub(crate) tags: Texts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct GetQueueUrl {
    pub(crate) queue_name: Option<String>,
    #[serde(rename = "QueueOwnerAWSAccountId")]
    pub(crate) queue_owner_aws_account_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ListQueues {
    pub(crate) queue_name_prefix: Option<String>,
    pub(crate) max_results: Option<Number>,
    pub(crate) next_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct GetQueueAttributes {
    pub(crate) queue_url: Option<String>,
    pub(crate) attribute_names: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct SetQueueAttributes {
    pub(crate) queue_url: Option<String>,
    pub(crate) attributes: Option<Texts>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct TagQueue {
    pub(crate) queue_url: Option<String>,
    pub(crate) tags: Option<Texts>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct UntagQueue {
    pub(crate) queue_url: Option<String>,
    pub(crate) tag_keys: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct SendMessage {
    pub(crate) queue_url: Option<String>,
    #[serde(flatten)]
    pub(crate) message: Outgoing,
}

/// A message to send.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Outgoing {
    pub(crate) message_body: Option<String>,
    pub(crate) delay_seconds: Option<Number>,
    pub(crate) message_attributes: GivenAttributes,
    pub(crate) message_system_attributes: GivenAttributes,
    pub(crate) message_deduplication_id: Option<String>,
    pub(crate) message_group_id: Option<String>,
}

impl Outgoing {
    /// Returns its size as it was given, whether or not it is sound.
    pub(crate) fn size(&self) -> usize {
        let body = self.message_body.as_ref().map_or(0, String::len);
        let attributes = self.message_attributes.iter();
        body + attributes.map(|(name, attribute)| name.len() + attribute.size()).sum::<usize>()
    }
}

/// A batch of one kind of entries.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Batch<T> {
    #[serde(default)]
    pub(crate) queue_url: Option<String>,
    #[serde(default = "Vec::new")]
    pub(crate) entries: Vec<Entry<T>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Entry<T> {
    #[serde(default)]
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) of: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ReceiveMessage {
    pub(crate) queue_url: Option<String>,
    pub(crate) attribute_names: Vec<String>,
    pub(crate) message_system_attribute_names: Vec<String>,
    pub(crate) message_attribute_names: Vec<String>,
    pub(crate) max_number_of_messages: Option<Number>,
    pub(crate) visibility_timeout: Option<Number>,
    pub(crate) wait_time_seconds: Option<Number>,
    pub(crate) receive_request_attempt_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct DeleteMessage {
    pub(crate) queue_url: Option<String>,
    pub(crate) receipt_handle: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ChangeMessageVisibility {
    pub(crate) queue_url: Option<String>,
    pub(crate) receipt_handle: Option<String>,
    pub(crate) visibility_timeout: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct StartMoveTask {
    pub(crate) source_arn: Option<String>,
    pub(crate) destination_arn: Option<String>,
    pub(crate) max_number_of_messages_per_second: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct CancelMoveTask {
    pub(crate) task_handle: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ListMoveTasks {
    pub(crate) source_arn: Option<String>,
    pub(crate) max_results: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct AddPermission {
    pub(crate) queue_url: Option<String>,
    pub(crate) label: Option<String>,
    #[serde(rename = "AWSAccountIds")]
    pub(crate) aws_account_ids: Vec<String>,
    pub(crate) actions: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct RemovePermission {
    pub(crate) queue_url: Option<String>,
    pub(crate) label: Option<String>,
}

/// Returns the name of a queue of this account: the last part of its address. The account is the
/// part before, if there is one; whatever another account has is no queue here.
pub(crate) fn queue_of(url: Option<String>, account: &str) -> Result<String, SqsError> {
    let url = url.filter(|url| !url.is_empty()).ok_or_else(|| SqsError::missing("QueueUrl"))?;
    // The host does not matter.
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => url.trim_start_matches('/'),
    };
    let path = path.trim_end_matches('/');
    let (owner, name) = path.rsplit_once('/').unwrap_or((account, path));
    let owner = owner.rsplit('/').next().unwrap_or_default();
    if owner != account {
        let message = format!(
            "The specified queue does not exist. Its address names the account {owner:?}; all \
             queues here are of {account}."
        );
        return Err(SqsError::new(Code::QueueDoesNotExist, message));
    }
    Ok(name.to_owned())
}

/// Returns a number that must be in a range.
pub(crate) fn in_range(
    given: Option<Number>,
    parameter: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Result<Option<i64>, SqsError> {
    let Some(Number(number)) = given else { return Ok(None) };
    if range.contains(&number) {
        return Ok(Some(number));
    }
    let reason = if *range.start() == 0 {
        format!("Must be >= 0 and <= {}, if provided.", range.end())
    } else {
        format!("Must be between {} and {}, if provided.", range.start(), range.end())
    };
    Err(SqsError::invalid(number, parameter, &reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_may_be_text() {
        let read = |value| read::<ReceiveMessage>(json!({"WaitTimeSeconds": value}));
        assert_eq!(read(json!(3)).unwrap().wait_time_seconds, Some(Number(3)));
        assert_eq!(read(json!("3")).unwrap().wait_time_seconds, Some(Number(3)));
        for odd in [json!("x"), json!(1.5), json!([]), json!("9999999999999999999999")] {
            assert!(read(odd.clone()).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_queue_is_the_last_part_of_its_address() {
        let queue = |url: &str| queue_of(Some(url.into()), "000000000000");
        for url in [
            "http://localhost:9324/000000000000/q.fifo",
            "https://sqs.us-east-1.amazonaws.com/000000000000/q.fifo/",
            "https://example.com/sqs/000000000000/q.fifo",
            "http://localhost:9324/q.fifo",
            "/000000000000/q.fifo",
            "000000000000/q.fifo",
            "/q.fifo",
            "q.fifo",
        ] {
            assert_eq!(queue(url).unwrap(), "q.fifo", "{url}");
        }
        for url in [
            "http://localhost:9324/111111111111/q.fifo",
            "http://000000000000/queue/q.fifo",
            "/0/q.fifo",
            "000000000000//q.fifo",
        ] {
            assert_eq!(queue(url).unwrap_err().code, Code::QueueDoesNotExist, "{url}");
        }
        assert_eq!(queue_of(None, "0").unwrap_err().code, Code::MissingParameter);
        assert_eq!(queue("").unwrap_err().code, Code::MissingParameter);
    }

    #[test]
    fn ranges_say_what_is_allowed() {
        let error = in_range(Some(Number(11)), "MaxNumberOfMessages", 1..=10).unwrap_err();
        let expected = "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be \
                        between 1 and 10, if provided.";
        assert_eq!(error.message, expected);
        let error = in_range(Some(Number(-1)), "WaitTimeSeconds", 0..=20).unwrap_err();
        let expected = "Value -1 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 \
                        and <= 20, if provided.";
        assert_eq!(error.message, expected);
    }
}

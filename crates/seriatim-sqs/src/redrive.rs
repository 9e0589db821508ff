//! Policies of dead letters: where those of a queue go, and whose a queue takes. The texts of
//! refusals are those of AWS, as far as they are known.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Code, SqsError};

/// The most source queues that an allow policy names.
const SOURCES_LIMIT: usize = 10;

/// A queue as its ARN names it. All regions are one.
#[derive(Debug, PartialEq)]
pub(crate) struct QueueArn<'a> {
    pub(crate) account: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> QueueArn<'a> {
    pub(crate) fn read(arn: &'a str) -> Option<Self> {
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", _, "sqs", _, account, name] = parts[..] else { return None };
        Some(Self { account, name })
    }
}

/// How often a message is received before it goes to which queue.
#[derive(Debug, PartialEq)]
pub(crate) struct RedrivePolicy {
    pub(crate) receives: u32,
    pub(crate) target: String,
    pub(crate) account: String,
}

impl RedrivePolicy {
    pub(crate) fn read(text: &str) -> Result<Self, SqsError> {
        let refused = |reason: &str| SqsError::invalid(text, "RedrivePolicy", reason);
        let Ok(Value::Object(members)) = serde_json::from_str(text) else {
            return Err(refused("Redrive policy is not a valid JSON map."));
        };
        let member = |name: &str| {
            members.get(name).ok_or_else(|| {
                refused(&format!("Redrive policy does not contain mandatory attribute: {name}."))
            })
        };
        let (receives, target) = (member("maxReceiveCount")?, member("deadLetterTargetArn")?);
        if members.len() > 2 {
            return Err(refused(
                "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn].",
            ));
        }
        let number = match receives {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64().and_then(|number| number.try_into().ok()),
        };
        let number: u32 = number.filter(|number| (1..=1000).contains(number)).ok_or_else(|| {
            let given = receives.as_str().map_or_else(|| receives.to_string(), str::to_owned);
            refused(&format!(
                "Invalid value for maxReceiveCount: {given}, valid values are from 1 to 1000 both \
                 inclusive."
            ))
        })?;
        let target = target.as_str().and_then(QueueArn::read);
        let target = target.ok_or_else(|| refused("Invalid value for deadLetterTargetArn."))?;
        Ok(Self {
            receives: number,
            target: target.name.to_owned(),
            account: target.account.to_owned(),
        })
    }
}

/// Which queues may send their dead letters to a queue.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RedriveAllowPolicy {
    redrive_permission: RedrivePermission,
    source_queue_arns: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum RedrivePermission {
    AllowAll,
    DenyAll,
    ByQueue,
}

impl RedriveAllowPolicy {
    pub(crate) fn read(text: &str) -> Result<Self, SqsError> {
        // From a value: a list is no policy, though its elements may be taken for members.
        let policy = serde_json::from_str(text).ok().filter(Value::is_object);
        let policy: Option<Self> = policy.and_then(|policy| serde_json::from_value(policy).ok());
        let policy = policy.filter(|policy| {
            policy.sources().iter().all(|source| QueueArn::read(source).is_some())
        });
        let policy = policy.ok_or_else(|| {
            let message = "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS \
                           can't create the redrive allow policy, as it\u{2019}s in an unsupported \
                           format.";
            SqsError::new(Code::InvalidAttributeValue, message)
        })?;
        let reason = match (policy.redrive_permission, policy.sources().len()) {
            (RedrivePermission::ByQueue, 0) => {
                "When you specify the byQueue permission type, you must also specify one or more \
                 sourceQueueArns values."
            }
            (RedrivePermission::ByQueue, 1..=SOURCES_LIMIT) => return Ok(policy),
            (RedrivePermission::ByQueue, _) => {
                "The maximum number of source queue ARNs you can specify is 10."
            }
            _ if policy.source_queue_arns.is_none() => return Ok(policy),
            _ => {
                "To specify one or more source queue ARNs, you must set redrivePermission to \
                 byQueue."
            }
        };
        let reason = format!("Amazon SQS can't create the redrive allow policy. {reason}");
        Err(SqsError::invalid(text, "RedriveAllowPolicy", &reason))
    }

    fn sources(&self) -> &[String] {
        self.source_queue_arns.as_deref().unwrap_or_default()
    }

    /// Returns whether a queue of this account may send its dead letters.
    pub(crate) fn allows(&self, account: &str, name: &str) -> bool {
        let source = QueueArn { account, name };
        match self.redrive_permission {
            RedrivePermission::AllowAll => true,
            RedrivePermission::DenyAll => false,
            RedrivePermission::ByQueue => {
                self.sources().iter().any(|arn| QueueArn::read(arn).as_ref() == Some(&source))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TARGET: &str = "arn:aws:sqs:us-east-1:000000000000:dead";

    #[test]
    fn a_policy_has_a_target_and_a_number() {
        for receives in [json!(3), json!("3")] {
            let policy = json!({"deadLetterTargetArn": TARGET, "maxReceiveCount": receives});
            let (target, account) = (String::from("dead"), String::from("000000000000"));
            let expected = RedrivePolicy { receives: 3, target, account };
            assert_eq!(RedrivePolicy::read(&policy.to_string()), Ok(expected));
        }
        let with =
            |receives: Value| json!({"deadLetterTargetArn": TARGET, "maxReceiveCount": receives});
        let range = ", valid values are from 1 to 1000 both inclusive.";
        for (policy, reason) in [
            (json!([]), "Redrive policy is not a valid JSON map."),
            (json!({}), "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
            (
                json!({"maxReceiveCount": 3}),
                "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
            ),
            (
                json!({"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}),
                "Invalid value for deadLetterTargetArn.",
            ),
            (
                json!({"deadLetterTargetArn": 1, "maxReceiveCount": 42}),
                "Invalid value for deadLetterTargetArn.",
            ),
            (
                json!({"deadLetterTargetArn": TARGET, "maxReceiveCount": 3, "more": 1}),
                "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn].",
            ),
            (with(json!(0)), &format!("Invalid value for maxReceiveCount: 0{range}")),
            (with(json!(1001)), &format!("Invalid value for maxReceiveCount: 1001{range}")),
            (with(json!("x")), &format!("Invalid value for maxReceiveCount: x{range}")),
            (with(json!(null)), &format!("Invalid value for maxReceiveCount: null{range}")),
        ] {
            let error = RedrivePolicy::read(&policy.to_string()).unwrap_err();
            let expected =
                format!("Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}");
            assert_eq!((error.code, error.message), (Code::InvalidParameterValue, expected));
        }
    }

    #[test]
    fn an_allow_policy_names_sources_with_by_queue_only() {
        let read = |policy: &Value| RedriveAllowPolicy::read(&policy.to_string());
        let arns = |count: usize| -> Vec<String> {
            (0..count).map(|n| format!("arn:aws:sqs:us-east-1:000000000000:q{n}")).collect()
        };
        let by_queue =
            |count| json!({"redrivePermission": "byQueue", "sourceQueueArns": arns(count)});
        for (policy, allowed) in [
            (json!({"redrivePermission": "allowAll"}), true),
            (json!({"redrivePermission": "denyAll"}), false),
            (by_queue(1), false),
            (by_queue(10), true),
        ] {
            let policy = read(&policy).unwrap();
            assert_eq!(policy.allows("000000000000", "q9"), allowed, "{policy:?}");
        }
        assert!(!read(&by_queue(10)).unwrap().allows("111111111111", "q9"));
        let of_all = json!({"redrivePermission": "allowAll", "sourceQueueArns": arns(1)});
        for (policy, reason) in [
            (json!({"redrivePermission": "byQueue"}), "you must also specify one or more"),
            (by_queue(0), "you must also specify one or more sourceQueueArns values."),
            (by_queue(11), "The maximum number of source queue ARNs you can specify is 10."),
            (of_all, "you must set redrivePermission to byQueue."),
        ] {
            let error = read(&policy).unwrap_err();
            let start = format!("Value {policy} for parameter RedriveAllowPolicy is invalid.");
            assert!(error.message.starts_with(&start), "{error}");
            assert!(error.message.contains(reason), "{error}");
            assert_eq!(error.code, Code::InvalidParameterValue);
        }
        for odd in [
            json!([]),
            json!(["allowAll", null]),
            json!({}),
            json!({"redrivePermission": "other"}),
            json!({"redrivePermission": "allowAll", "more": 1}),
            json!({"redrivePermission": "byQueue", "sourceQueueArns": TARGET}),
            json!({"redrivePermission": "byQueue", "sourceQueueArns": [1]}),
            json!({"redrivePermission": "byQueue", "sourceQueueArns": ["q"]}),
        ] {
            assert_eq!(read(&odd).unwrap_err().code, Code::InvalidAttributeValue, "{odd}");
        }
    }
}

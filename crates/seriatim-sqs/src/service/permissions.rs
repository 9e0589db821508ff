//! Permissions: statements of a queue's policy. They are stored and never enforced: rights are
//! those of database roles.

use serde_json::{Value, json};

use crate::error::{Code, SqsError};
use crate::input::{AddPermission, RemovePermission};
use crate::queue::Queue;
use crate::service::Request;
use crate::service::changes::Change;

/// The actions that a queue may allow to others than its owner.
const ACTIONS: [&str; 9] = [
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
];
const ACTIONS_LIMIT: usize = 7;

impl Request {
    pub(super) async fn add_permission(&self, input: AddPermission) -> Result<Value, SqsError> {
        let label = input.label.ok_or_else(|| SqsError::missing("Label"))?;
        check(&label, &input.actions, &input.aws_account_ids)?;
        self.change_policy(input.queue_url, |statements, arn| {
            if statements.iter().any(|statement| statement["Sid"] == *label) {
                return Err(SqsError::invalid(&label, "Label", "Already exists."));
            }
            let accounts = input.aws_account_ids.iter();
            let accounts = accounts.map(|account| format!("arn:aws:iam::{account}:root"));
            let actions = input.actions.iter().map(|action| format!("SQS:{action}"));
            statements.push(json!({
                "Sid": label,
                "Effect": "Allow",
                "Principal": {"AWS": one_or_many(accounts.collect())},
                "Action": one_or_many(actions.collect()),
                "Resource": arn,
            }));
            Ok(())
        })
        .await
    }

    pub(super) async fn remove_permission(
        &self,
        input: RemovePermission,
    ) -> Result<Value, SqsError> {
        let label = input.label.ok_or_else(|| SqsError::missing("Label"))?;
        self.change_policy(input.queue_url, |statements, _| {
            let before = statements.len();
            statements.retain(|statement| statement["Sid"] != *label);
            if statements.len() == before {
                let reason = "can't find label.";
                return Err(SqsError::invalid(&label, "Label", reason));
            }
            Ok(())
        })
        .await
    }

    /// Changes the statements of a queue's policy. One without statements is removed.
    async fn change_policy(
        &self,
        url: Option<String>,
        change: impl Fn(&mut Vec<Value>, &str) -> Result<(), SqsError> + Sync,
    ) -> Result<Value, SqsError> {
        let policy_with_change = |queue: &Queue| {
            let arn = self.arn_of(&queue.name);
            let mut policy = policy(queue, &arn);
            let mut statements = match policy["Statement"].take() {
                Value::Array(statements) => statements,
                Value::Null => Vec::new(),
                one => vec![one],
            };
            change(&mut statements, &arn)?;
            if statements.is_empty() {
                return Ok(Change::Policy(String::new()));
            }
            policy["Statement"] = statements.into();
            Ok(Change::Policy(policy.to_string()))
        };
        self.change_queue(&self.name_of(url)?, policy_with_change).await?;
        Ok(Value::Null)
    }
}

/// Returns the policy of a queue, or the one that AWS begins with.
fn policy(queue: &Queue, arn: &str) -> Value {
    let stored = queue.attributes.get("Policy").and_then(|text| serde_json::from_str(text).ok());
    stored.filter(Value::is_object).unwrap_or_else(
        || json!({"Version": "2008-10-17", "Id": format!("{arn}/SQSDefaultPolicy")}),
    )
}

fn check(label: &str, actions: &[String], accounts: &[String]) -> Result<(), SqsError> {
    let is_sound = (1..=80).contains(&label.len())
        && label.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if !is_sound {
        let reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 \
                      in length.";
        return Err(SqsError::invalid(label, "Label", reason));
    } else if actions.is_empty() {
        return Err(SqsError::missing("Actions"));
    } else if accounts.is_empty() {
        return Err(SqsError::invalid("[]", "PrincipalId", "Unable to verify."));
    } else if actions.len() > ACTIONS_LIMIT {
        let message =
            format!("{} Actions were found, maximum allowed is {ACTIONS_LIMIT}.", actions.len());
        return Err(SqsError::new(Code::OverLimit, message));
    }
    let is_account = |account: &&String| {
        account.len() == 12 && account.chars().all(|digit| digit.is_ascii_digit())
    };
    if let Some(odd) = accounts.iter().find(|account| !is_account(account)) {
        let value = format!("[{odd}]");
        return Err(SqsError::invalid(value, "PrincipalId", "Unable to verify."));
    }
    match actions.iter().find(|action| !ACTIONS.contains(&action.as_str())) {
        None => Ok(()),
        Some(odd) => {
            let reason = "Only the queue owner is allowed to invoke this action.";
            Err(SqsError::invalid(format!("SQS:{odd}"), "ActionName", reason))
        }
    }
}

/// Policies have a lone value without a list.
fn one_or_many(mut values: Vec<String>) -> Value {
    match values.pop() {
        Some(one) if values.is_empty() => one.into(),
        last => {
            values.extend(last);
            values.into()
        }
    }
}

//! Permissions, which are stored in a queue's policy.

use serde_json::{Value, json};

use crate::support::Sqs;

const ARN: &str = "arn:aws:sqs:us-east-1:000000000000:q";

async fn policy(sqs: &Sqs, url: &str) -> Option<Value> {
    let input = json!({"QueueUrl": url, "AttributeNames": ["Policy"]});
    let attributes = sqs.call("GetQueueAttributes", input).await;
    let text = attributes["Attributes"]["Policy"].as_str()?;
    Some(serde_json::from_str(text).unwrap())
}

fn permission(url: &str, label: &str, accounts: &[&str], actions: &[&str]) -> Value {
    json!({"QueueUrl": url, "Label": label, "AWSAccountIds": accounts, "Actions": actions})
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_statements_of_the_policy() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let (one, other) = ("111111111111", "222211111111");
    sqs.call("AddPermission", permission(&url, "a", &[one], &["*"])).await;
    // By the Query protocol.
    let fields = [
        ("Action", "AddPermission"),
        ("QueueUrl", &*url),
        ("Label", "b"),
        ("AWSAccountId.1", one),
        ("AWSAccountId.2", other),
        ("ActionName.1", "SendMessage"),
        ("ActionName.2", "ReceiveMessage"),
    ];
    assert_eq!(sqs.query("/", &fields).await.status, 200);
    let statement = json!({"Sid": "a", "Effect": "Allow", "Action": "SQS:*", "Resource": ARN,
        "Principal": {"AWS": "arn:aws:iam::111111111111:root"}});
    let expected = json!({"Version": "2008-10-17", "Id": format!("{ARN}/SQSDefaultPolicy"),
        "Statement": [statement, {"Sid": "b", "Effect": "Allow", "Resource": ARN,
            "Principal": {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222211111111:root"]},
            "Action": ["SQS:SendMessage", "SQS:ReceiveMessage"]}]});
    assert_eq!(policy(&sqs, &url).await, Some(expected));
    let remove = |label: &str| json!({"QueueUrl": url, "Label": label});
    sqs.call("RemovePermission", remove("b")).await;
    assert_eq!(policy(&sqs, &url).await.unwrap()["Statement"], json!([statement]));
    sqs.call("RemovePermission", remove("a")).await;
    assert_eq!(policy(&sqs, &url).await, None);
    let (error, text) = sqs.refusal("RemovePermission", remove("a")).await;
    assert_eq!(error, "InvalidParameterValueException");
    assert!(text.ends_with("Reason: can't find label."), "{text}");
    // Two at once: both are stored.
    let add =
        |label: &'static str| sqs.call("AddPermission", permission(&url, label, &[one], &["*"]));
    futures::future::join_all(["c", "d", "e", "f"].map(add)).await;
    assert_eq!(policy(&sqs, &url).await.unwrap()["Statement"].as_array().unwrap().len(), 4);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_that_cannot_be_are_refused() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let (one, all) = (["111111111111"], ["*"]);
    sqs.call("AddPermission", permission(&url, "a", &one, &all)).await;
    let eight = ["SendMessage"; 8];
    let invalid = "InvalidParameterValueException";
    for (input, error, text) in [
        (
            permission(&url, "a", &one, &all),
            invalid,
            "Value a for parameter Label is invalid. Reason: Already exists.",
        ),
        (permission(&url, "b c", &one, &all), invalid, "parameter Label"),
        (
            permission(&url, "b", &one, &["RemovePermission"]),
            invalid,
            "Only the queue owner is allowed to invoke this action.",
        ),
        (
            permission(&url, "b", &one, &[]),
            "MissingRequiredParameterException",
            "The request must contain the parameter Actions.",
        ),
        (
            permission(&url, "b", &[], &all),
            invalid,
            "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (permission(&url, "b", &["1"], &all), invalid, "Value [1] for parameter PrincipalId"),
        (
            permission(&url, "b", &one, &eight),
            "OverLimit",
            "8 Actions were found, maximum allowed is 7.",
        ),
        (permission("none", "b", &one, &all), "QueueDoesNotExist", "does not exist"),
    ] {
        let refusal = sqs.refusal("AddPermission", input.clone()).await;
        assert!(refusal.0 == error && refusal.1.contains(text), "{input}: {refusal:?}");
    }
    let over = sqs.ask("AddPermission", permission(&url, "b", &one, &eight)).await;
    assert_eq!(over.status, 403);
    sqs.end().await;
}

//! Dead-letter queues, and tasks that move what they have.

use serde_json::{Value, json};

use crate::support::{Sqs, bodies};

fn arn(queue: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{queue}")
}

fn policy(target: &str, receives: u32) -> Value {
    let policy = json!({"deadLetterTargetArn": arn(target), "maxReceiveCount": receives});
    json!({"RedrivePolicy": policy.to_string()})
}

/// Receives one message, and gives it back.
async fn fail(sqs: &Sqs, url: &str) -> Value {
    let message = sqs.receive_with(url, json!({"AttributeNames": ["All"]})).await.remove(0);
    let input =
        json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0});
    sqs.call("ChangeMessageVisibility", input).await;
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_received_too_often_moves_and_keeps_its_id() {
    let sqs = Sqs::start().await;
    for suffix in ["", ".fifo"] {
        let dead = sqs.queue(&format!("dead{suffix}")).await;
        let url = sqs.queue_with(&format!("q{suffix}"), policy(&format!("dead{suffix}"), 2)).await;
        if suffix.is_empty() {
            sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
        } else {
            sqs.send_to(&url, "g", &["1", "2"]).await;
        }
        let first = fail(&sqs, &url).await;
        assert!(first["Attributes"].get("DeadLetterQueueSourceArn").is_none());
        fail(&sqs, &url).await;
        let moved = sqs.receive_with(&dead, json!({"AttributeNames": ["All"]})).await.remove(0);
        for field in ["MessageId", "Body"] {
            assert_eq!(moved[field], first[field], "{field}");
        }
        let (before, after) = (&first["Attributes"], &moved["Attributes"]);
        for field in ["SentTimestamp", "MessageGroupId", "MessageDeduplicationId", "SequenceNumber"]
        {
            assert_eq!(after[field], before[field], "{field}");
        }
        assert_eq!(after["ApproximateReceiveCount"], "3");
        assert_eq!(after["DeadLetterQueueSourceArn"], arn(&format!("q{suffix}")));
        // An id that the dead letter has counts in its own queue alone.
        if !suffix.is_empty() {
            assert_eq!(bodies(&sqs.receive(&url).await), ["2"]);
            sqs.send_to(&dead, "other", &["1"]).await;
            assert_eq!(bodies(&sqs.receive(&dead).await), ["1"]);
        }
        assert_eq!(sqs.delete(&dead, &moved).await.status, 200);
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visibility_that_ends_moves_the_message_as_well() {
    let sqs = Sqs::start().await;
    let dead = sqs.queue("dead").await;
    let url = sqs.queue_with("q", policy("dead", 1)).await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    assert_eq!(sqs.receive_with(&url, json!({"VisibilityTimeout": 0})).await.len(), 1);
    assert!(sqs.receive(&url).await.is_empty());
    assert_eq!(bodies(&sqs.receive(&dead).await), ["1"]);
    // Without the policy a message is received as often as it takes.
    let set = json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": ""}});
    sqs.call("SetQueueAttributes", set).await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "2"})).await;
    for _ in 0..3 {
        assert_eq!(fail(&sqs, &url).await["Body"], "2");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_names_a_queue_of_the_same_kind() {
    let sqs = Sqs::start().await;
    sqs.queue("dead").await;
    sqs.queue("dead.fifo").await;
    for (name, target, reason) in [
        ("q", "dead.fifo", "Dead-letter queue must be same type of queue as the source."),
        ("q.fifo", "dead", "Dead-letter queue must be same type of queue as the source."),
        ("q", "none", "Dead letter target does not exist."),
    ] {
        let mut attributes = policy(target, 1);
        if name.strip_suffix(".fifo").is_some() {
            attributes["FifoQueue"] = "true".into();
        }
        let input = json!({"QueueName": name, "Attributes": attributes});
        let (error, text) = sqs.refusal("CreateQueue", input).await;
        assert_eq!(error, "InvalidParameterValueException");
        assert!(text.contains(reason), "{text}");
    }
    let url = sqs.queue("q").await;
    let set = json!({"QueueUrl": url, "Attributes": policy("q", 1)});
    assert_eq!(sqs.refusal("SetQueueAttributes", set).await.0, "InvalidAttributeValue");
    sqs.end().await;
}

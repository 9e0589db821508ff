//! Deliberate deviations from AWS that no other file tests.

use serde_json::json;

use crate::support::{Sqs, bodies};

#[tokio::test(flavor = "multi_thread")]
async fn policies_and_quotas_are_stored_and_do_nothing() {
    let sqs = Sqs::start().await;
    let deny = json!({"Version": "2012-10-17", "Statement": [
        {"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": "*"}]});
    let stored = json!({"Policy": deny.to_string(), "KmsMasterKeyId": "alias/none",
        "FifoThroughputLimit": "perQueue", "DeduplicationScope": "queue"});
    let url = sqs.queue_with("q.fifo", stored.clone()).await;
    let all = json!({"QueueUrl": url, "AttributeNames": ["All"]});
    let found = sqs.call("GetQueueAttributes", all).await;
    for (name, value) in stored.as_object().unwrap() {
        assert_eq!(found["Attributes"][name], *value, "{name}");
    }
    sqs.send_to(&url, "g", &["secret"]).await;
    let plain = "select count(*) from seriatim.job where payload = 'secret'::bytea";
    assert_eq!(sqs.number(plain).await, 1, "nothing is encrypted");
    let asked = json!({"AttributeNames": ["SenderId"]});
    let received = sqs.receive_with(&url, asked).await;
    assert_eq!(received[0]["Attributes"], json!({"SenderId": "000000000000"}));
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_in_a_standard_queue_is_kept_and_has_no_effect() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    for body in ["1", "2"] {
        let message = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": "g"});
        sqs.call("SendMessage", message).await;
    }
    // Both at once: in a FIFO queue the second receive would find nothing.
    for body in ["1", "2"] {
        let received = sqs.receive_with(&url, json!({"AttributeNames": ["All"]})).await;
        assert_eq!(bodies(&received), [body]);
        assert_eq!(received[0]["Attributes"]["MessageGroupId"], "g");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_old_stays_as_a_failed_job() {
    let sqs = Sqs::start().await;
    let url = sqs.queue_with("q.fifo", json!({"MessageRetentionPeriod": "60"})).await;
    sqs.send_to(&url, "g", &["old", "new"]).await;
    sqs.sql("update seriatim.job set expires_at = clock_timestamp() where payload = 'old'").await;
    let mut received = sqs.receive(&url).await;
    while received.is_empty() {
        received = sqs.receive_with(&url, json!({"WaitTimeSeconds": 1})).await;
    }
    assert_eq!(bodies(&received), ["new"]);
    let kept = "select count(*) from seriatim.job where payload = 'old' and status = 'failed'";
    assert_eq!(sqs.number(kept).await, 1);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_scope_counts_at_once_and_compares_no_ids_across_it() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let send = async |group: &str| {
        let message = json!({"QueueUrl": url, "MessageBody": "1", "MessageGroupId": group,
            "MessageDeduplicationId": "1"});
        sqs.call("SendMessage", message).await["SequenceNumber"].clone()
    };
    let scope = async |scope: &str, limit: &str| {
        let of = json!({"DeduplicationScope": scope, "FifoThroughputLimit": limit});
        sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": of})).await;
    };
    let first = send("g").await;
    assert_eq!(send("h").await, first);
    scope("messageGroup", "perMessageGroupId").await;
    let (of_g, of_h) = (send("g").await, send("h").await);
    assert!(of_g != first && of_h != first && of_g != of_h);
    assert_eq!((send("g").await, send("h").await), (of_g, of_h));
    // The ids that the queue remembers from before count again.
    scope("queue", "perQueue").await;
    assert_eq!((send("g").await, send("i").await), (first.clone(), first));
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_id_of_a_message_that_is_gone_is_a_repeat_still() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let message = json!({"QueueUrl": url, "MessageBody": "1", "MessageGroupId": "g",
        "MessageDeduplicationId": "1"});
    let first = sqs.call("SendMessage", message.clone()).await;
    let received = sqs.receive(&url).await;
    assert_eq!(sqs.delete(&url, &received[0]).await.status, 200);
    let again = sqs.call("SendMessage", message.clone()).await;
    assert_eq!(again, first, "it is kept for a day");
    sqs.sql("delete from seriatim.job").await;
    let again = sqs.call("SendMessage", message).await;
    assert_eq!(again["SequenceNumber"], first["SequenceNumber"]);
    assert_ne!(again["MessageId"], first["MessageId"]);
    assert!(sqs.receive(&url).await.is_empty());
    sqs.end().await;
}

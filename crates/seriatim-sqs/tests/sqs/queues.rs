//! Queues: made, listed, described, tagged, emptied, removed.

use serde_json::json;

use crate::support::{Sqs, bodies};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_made_once_and_found() {
    let sqs = Sqs::start().await;
    let url = sqs.queue_with("q", json!({"DelaySeconds": "5"})).await;
    assert_eq!(url, format!("http://{}/000000000000/q", sqs.address));
    assert_eq!(sqs.queue_with("q", json!({"DelaySeconds": "5"})).await, url);
    assert_eq!(sqs.queue("q").await, url);
    let other = json!({"QueueName": "q", "Attributes": {"DelaySeconds": "6"}});
    let text = "A queue already exists with the same name and a different value for attribute DelaySeconds";
    let refusal = sqs.refusal("CreateQueue", other.clone()).await;
    assert_eq!(refusal, ("QueueNameExists".into(), text.into()));
    let answer = sqs.ask("CreateQueue", other).await;
    assert_eq!(
        (answer.status, answer.query_error.as_deref()),
        (400, Some("QueueAlreadyExists;Sender"))
    );
    assert_eq!(sqs.call("GetQueueUrl", json!({"QueueName": "q"})).await["QueueUrl"], url);
    // A setting that seriatim has as well counts for every producer.
    assert_eq!(sqs.number("select delay_ms from seriatim.queue where name = 'q'").await, 5000);

    for name in ["", "a b", "a/b", "q.fifo", &"x".repeat(81)] {
        let (error, _) = sqs.refusal("CreateQueue", json!({"QueueName": name})).await;
        assert_eq!(error, "InvalidParameterValueException", "{name}");
    }
    let (error, _) = sqs.refusal("GetQueueUrl", json!({"QueueName": "q\0"})).await;
    assert_eq!(error, "QueueDoesNotExist");
    // Its messages have been there all the while, but SQS clients have not made it.
    sqs.sql("select seriatim.enqueue('native', '1')").await;
    let (error, text) = sqs.refusal("GetQueueUrl", json!({"QueueName": "native"})).await;
    assert_eq!((&*error, &*text), ("QueueDoesNotExist", "The specified queue does not exist."));
    sqs.end().await;
}

/// Programs write booleans as their language does.
#[tokio::test(flavor = "multi_thread")]
async fn booleans_may_be_in_capitals() {
    let sqs = Sqs::start().await;
    let attributes = |fifo: &str, by_content: &str| {
        json!({"QueueName": "q.fifo",
            "Attributes": {"FifoQueue": fifo, "ContentBasedDeduplication": by_content}})
    };
    let url = sqs.call("CreateQueue", attributes("True", "TRUE")).await["QueueUrl"].clone();
    assert_eq!(sqs.call("CreateQueue", attributes("true", "true")).await["QueueUrl"], url);
    let set = json!({"QueueUrl": url, "Attributes": {"ContentBasedDeduplication": "False"}});
    sqs.call("SetQueueAttributes", set).await;
    let names = ["FifoQueue", "ContentBasedDeduplication"];
    let known =
        sqs.call("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": names})).await;
    let expected = json!({"FifoQueue": "true", "ContentBasedDeduplication": "false"});
    assert_eq!(known["Attributes"], expected);
    assert_eq!(sqs.number("select count(*) from seriatim.queue where dedup_by_content").await, 0);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_queue_has_the_encryption_of_sqs_unless_it_has_a_key() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let all = json!({"QueueUrl": url, "AttributeNames": ["All"]});
    let known = sqs.call("GetQueueAttributes", all.clone()).await["Attributes"].clone();
    assert_eq!(known["SqsManagedSseEnabled"], "true");
    assert!(known.get("KmsDataKeyReusePeriodSeconds").is_none(), "{known}");
    let key = json!({"QueueUrl": url, "Attributes": {"KmsMasterKeyId": "alias/aws/sqs"}});
    sqs.call("SetQueueAttributes", key).await;
    let known = sqs.call("GetQueueAttributes", all.clone()).await["Attributes"].clone();
    assert_eq!(known["SqsManagedSseEnabled"], "false");
    for (key, period, shown) in [("alias/a", "6000", Some("6000")), ("", "300", None)] {
        let set = json!({"KmsMasterKeyId": key, "KmsDataKeyReusePeriodSeconds": period});
        sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": set})).await;
        let known = sqs.call("GetQueueAttributes", all.clone()).await["Attributes"].clone();
        let known_period = known.get("KmsDataKeyReusePeriodSeconds");
        assert_eq!(known_period.and_then(|period| period.as_str()), shown, "{key:?}");
        assert_eq!(known["SqsManagedSseEnabled"], "false", "{key:?}");
    }
    // As most programs make it: the default is no other setting.
    let again = json!({"QueueName": "p", "Attributes": {"SqsManagedSseEnabled": "true"}});
    sqs.call("CreateQueue", json!({"QueueName": "p"})).await;
    sqs.call("CreateQueue", again).await;
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages() {
    let sqs = Sqs::start().await;
    for name in ["b-2", "a-1", "b-1", "b-3"] {
        sqs.queue(name).await;
    }
    let names = |page: &serde_json::Value| {
        let urls = page["QueueUrls"].as_array().cloned().unwrap_or_default();
        urls.iter()
            .map(|url| url.as_str().unwrap().rsplit('/').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&sqs.call("ListQueues", json!({})).await), ["a-1", "b-1", "b-2", "b-3"]);
    let of = json!({"QueueNamePrefix": "b-", "MaxResults": 2});
    let page = sqs.call("ListQueues", of).await;
    assert_eq!(names(&page), ["b-1", "b-2"]);
    let of = json!({"QueueNamePrefix": "b-", "MaxResults": 2, "NextToken": page["NextToken"]});
    let page = sqs.call("ListQueues", of).await;
    assert_eq!(names(&page), ["b-3"]);
    assert!(page.get("NextToken").is_none());
    assert_eq!(names(&sqs.call("ListQueues", json!({"QueueNamePrefix": "x"})).await), [""; 0]);
    for odd in [json!({"MaxResults": 0}), json!({"NextToken": "?"}), json!({"MaxResults": 1001})] {
        assert_eq!(sqs.refusal("ListQueues", odd).await.0, "InvalidParameterValueException");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_visibility_is_over_counts_as_visible() {
    let sqs = Sqs::start().await;
    for name in ["q", "q.fifo"] {
        let url = sqs.queue(name).await;
        let mut input = json!({"QueueUrl": url, "MessageBody": "b"});
        if name == "q.fifo" {
            input["MessageGroupId"] = "g".into();
            input["MessageDeduplicationId"] = "d".into();
        }
        sqs.call("SendMessage", input).await;
        sqs.receive(&url).await;
        let counts = async || {
            let input = json!({"QueueUrl": url, "AttributeNames": ["All"]});
            let known = sqs.call("GetQueueAttributes", input).await["Attributes"].clone();
            let number = |name: &str| known[name].as_str().unwrap().to_owned();
            ["", "NotVisible"].map(|of| number(&format!("ApproximateNumberOfMessages{of}")))
        };
        assert_eq!(counts().await, ["0", "1"], "{name}");
        sqs.lapse().await;
        assert_eq!(counts().await, ["1", "0"], "{name}");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_are_set_counted_and_removed() {
    let sqs = Sqs::start().await;
    let dead = sqs.queue("dead").await;
    let url = sqs.queue("q").await;
    let all = json!({"QueueUrl": url, "AttributeNames": ["All"]});
    for body in ["1", "2", "3"] {
        let delay = if body == "3" { 900 } else { 0 };
        let input = json!({"QueueUrl": url, "MessageBody": body, "DelaySeconds": delay});
        sqs.call("SendMessage", input).await;
    }
    sqs.receive_with(&url, json!({})).await;
    let attributes = &sqs.call("GetQueueAttributes", all.clone()).await["Attributes"];
    for (name, value) in [
        ("ApproximateNumberOfMessages", "1"),
        ("ApproximateNumberOfMessagesNotVisible", "1"),
        ("ApproximateNumberOfMessagesDelayed", "1"),
        ("QueueArn", "arn:aws:sqs:us-east-1:000000000000:q"),
        ("VisibilityTimeout", "30"),
        ("MessageRetentionPeriod", "345600"),
    ] {
        assert_eq!(attributes[name], value, "{name}");
    }
    assert!(attributes.get("FifoQueue").is_none() && attributes.get("Policy").is_none());

    let policy = json!({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead",
        "maxReceiveCount": 3});
    let set = json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": policy.to_string(), "Policy": "{}"}});
    sqs.call("SetQueueAttributes", set).await;
    let attributes = sqs.call("GetQueueAttributes", all.clone()).await;
    assert_eq!(attributes["Attributes"]["RedrivePolicy"], policy.to_string());
    assert_eq!(
        sqs.number("select max_attempts::int8 from seriatim.queue where name = 'q'").await,
        3
    );
    let sources = sqs.call("ListDeadLetterSourceQueues", json!({"QueueUrl": dead})).await;
    assert_eq!(sources["queueUrls"], json!([url]));
    let set = json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": "", "Policy": ""}});
    sqs.call("SetQueueAttributes", set).await;
    let attributes = sqs.call("GetQueueAttributes", all).await;
    assert!(attributes["Attributes"].get("RedrivePolicy").is_none());

    let one = json!({"QueueUrl": url, "AttributeNames": ["VisibilityTimeout"]});
    let attributes = sqs.call("GetQueueAttributes", one).await;
    assert_eq!(attributes, json!({"Attributes": {"VisibilityTimeout": "30"}}));
    let odd = json!({"QueueUrl": url, "AttributeNames": ["Odd"]});
    let refusal = sqs.refusal("GetQueueAttributes", odd).await;
    assert_eq!(refusal, ("InvalidAttributeName".into(), "Unknown Attribute Odd.".into()));
    for (attributes, error) in [
        (json!({"VisibilityTimeout": "-1"}), "InvalidAttributeValue"),
        (json!({"FifoQueue": "true"}), "InvalidAttributeName"),
        (json!({"ContentBasedDeduplication": "true"}), "InvalidAttributeName"),
        (
            json!({"RedrivePolicy": policy.to_string().replace("dead", "none")}),
            "InvalidParameterValueException",
        ),
    ] {
        let set = json!({"QueueUrl": url, "Attributes": attributes});
        assert_eq!(sqs.refusal("SetQueueAttributes", set).await.0, error, "{attributes}");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_come_and_go() {
    let sqs = Sqs::start().await;
    let made =
        sqs.call("CreateQueue", json!({"QueueName": "q", "tags": {"a": "1", "b": "2"}})).await;
    let url = &made["QueueUrl"];
    sqs.call("TagQueue", json!({"QueueUrl": url, "Tags": {"b": "3", "c": ""}})).await;
    sqs.call("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["a", "x"]})).await;
    let tags = sqs.call("ListQueueTags", json!({"QueueUrl": url})).await;
    assert_eq!(tags, json!({"Tags": {"b": "3", "c": ""}}));
    let many: serde_json::Map<_, _> = (0..51).map(|n| (n.to_string(), json!(""))).collect();
    for (operation, input) in [
        ("TagQueue", json!({"QueueUrl": url, "Tags": {}})),
        ("TagQueue", json!({"QueueUrl": url, "Tags": {"": "x"}})),
        ("TagQueue", json!({"QueueUrl": url, "Tags": many})),
        ("UntagQueue", json!({"QueueUrl": url, "TagKeys": []})),
    ] {
        sqs.refusal(operation, input).await;
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_empties_a_queue_once_a_minute() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    sqs.send_to(&url, "g", &["1", "2"]).await;
    sqs.send_to(&url, "h", &["3"]).await;
    let received = sqs.receive_with(&url, json!({})).await;
    assert_eq!(received.len(), 1);
    sqs.call("PurgeQueue", json!({"QueueUrl": url})).await;
    let (error, text) = sqs.refusal("PurgeQueue", json!({"QueueUrl": url})).await;
    assert_eq!(error, "PurgeQueueInProgress");
    assert_eq!(text, "Only one PurgeQueue operation on q.fifo is allowed every 60 seconds.");
    // The messages in flight are gone too, and no longer hold up their group.
    let input = json!({"QueueUrl": url, "ReceiptHandle": received[0]["ReceiptHandle"], "VisibilityTimeout": 0});
    sqs.refusal("ChangeMessageVisibility", input).await;
    assert_eq!(sqs.delete(&url, &received[0]).await.status, 200);
    assert_eq!(sqs.receive(&url).await.len(), 0);
    assert_eq!(sqs.number("select count(*) from seriatim.job where status = 'cancelled'").await, 3);
    let recorded = "select sum(affected)::bigint from seriatim.operation \
                    where action = 'purge' and reason = 'PurgeQueue'";
    assert_eq!(sqs.number(recorded).await, 3);
    // The ids of what was purged may come again.
    sqs.send_to(&url, "g", &["1"]).await;
    assert_eq!(bodies(&sqs.receive(&url).await), ["1"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_made_again_has_nothing_of_the_one_before() {
    let sqs = Sqs::start().await;
    let url = sqs
        .queue_with("q.fifo", json!({"DelaySeconds": "900", "DeduplicationScope": "messageGroup"}))
        .await;
    sqs.sql("select seriatim.enqueue('q.fifo', '\"now\"', 'g', delay => '0')").await;
    assert_eq!(sqs.receive(&url).await.len(), 1, "in flight");
    sqs.send_to(&url, "h", &["1"]).await;
    sqs.call("DeleteQueue", json!({"QueueUrl": url})).await;
    assert_eq!(sqs.refusal("DeleteQueue", json!({"QueueUrl": url})).await.0, "QueueDoesNotExist");
    assert_eq!(
        sqs.refusal("ReceiveMessage", json!({"QueueUrl": url})).await.0,
        "QueueDoesNotExist"
    );

    assert_eq!(sqs.queue("q.fifo").await, url);
    sqs.send_to(&url, "h", &["1"]).await;
    assert_eq!(bodies(&sqs.receive(&url).await), ["1"], "without a delay");
    sqs.lapse().await;
    let mut again = Vec::new();
    while again.is_empty() {
        again =
            sqs.receive_with(&url, json!({"WaitTimeSeconds": 5, "MaxNumberOfMessages": 10})).await;
    }
    assert_eq!(bodies(&again), ["1"]);
    sqs.end().await;
}

/// A removal that commits while the queue is made again: the queue is there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_made_again_while_it_is_being_removed() {
    let sqs = Sqs::start().await;
    sqs.queue("q").await;
    let mut removal = sqs.database.pool().begin().await.unwrap();
    let delete = sqlx::query("delete from seriatim.sqs_queue where name = 'q'");
    delete.execute(&mut *removal).await.unwrap();
    let commits = async {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        while sqs.number(waiting).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        removal.commit().await.unwrap();
    };
    tokio::join!(sqs.queue("q"), commits);
    sqs.call("GetQueueUrl", json!({"QueueName": "q"})).await;
    sqs.end().await;
}

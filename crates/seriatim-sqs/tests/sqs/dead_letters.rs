//! Dead-letter queues, and tasks that move what they have.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::{PATIENCE, Sqs, bodies};

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

/// The receiver may have been killed by the first: those behind it are not held to account.
#[tokio::test(flavor = "multi_thread")]
async fn of_messages_that_came_together_the_first_alone_is_held_to_account() {
    let sqs = Sqs::start().await;
    let dead = sqs.queue("dead.fifo").await;
    let url = sqs.queue_with("q.fifo", policy("dead.fifo", 2)).await;
    sqs.send_to(&url, "g", &["1", "2", "3"]).await;
    let receive = json!({"VisibilityTimeout": 0, "MaxNumberOfMessages": 10});
    for left in [&["1", "2", "3"][..], &["2", "3"], &["3"]] {
        for _ in 0..2 {
            assert_eq!(bodies(&sqs.receive_with(&url, receive.clone()).await), left);
        }
    }
    assert!(sqs.receive(&url).await.is_empty());
    let moved = sqs.receive_with(&dead, json!({"MaxNumberOfMessages": 10})).await;
    assert_eq!(bodies(&moved), ["1", "2", "3"]);
    // None may be received twice, so none comes behind another.
    let url = sqs.queue_with("once.fifo", policy("dead.fifo", 1)).await;
    sqs.send_to(&url, "g", &["1", "2"]).await;
    for next in ["1", "2"] {
        assert_eq!(bodies(&sqs.receive_with(&url, receive.clone()).await), [next]);
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_that_is_removed_goes_on_to_take_dead_letters() {
    let sqs = Sqs::start().await;
    let dead = sqs.queue("dead").await;
    let url = sqs.queue_with("q", policy("dead", 1)).await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    sqs.call("DeleteQueue", json!({"QueueUrl": dead})).await;
    fail(&sqs, &url).await;
    assert!(sqs.receive(&url).await.is_empty());
    let (error, _) = sqs.refusal("ReceiveMessage", json!({"QueueUrl": dead})).await;
    assert_eq!(error, "QueueDoesNotExist");
    let dead = sqs.queue("dead").await;
    assert_eq!(bodies(&sqs.receive(&dead).await), ["1"]);
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

/// Two queues with one dead-letter queue, of standard type or FIFO. Returns the addresses of all
/// three, the dead-letter queue's last.
async fn with_dead_letters(sqs: &Sqs, suffix: &str) -> [String; 3] {
    let dead = sqs.queue(&format!("dead{suffix}")).await;
    let mut sources = Vec::new();
    for name in ["a", "b"] {
        let name = format!("{name}{suffix}");
        let url = sqs.queue_with(&name, policy(&format!("dead{suffix}"), 2)).await;
        for body in ["1", "2", "3"] {
            let body = format!("{name} {body}");
            if suffix.is_empty() {
                sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
            } else {
                sqs.send_to(&url, "g", &[&body.replace(' ', "-")]).await;
            }
        }
        for _ in 0..6 {
            fail(sqs, &url).await;
        }
        sources.push(url);
    }
    let [a, b] = sources.try_into().unwrap();
    [a, b, dead]
}

/// Waits until the newest task of a queue has ended, and returns it.
async fn ended(sqs: &Sqs, queue: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let list = sqs.call("ListMessageMoveTasks", json!({"SourceArn": arn(queue)})).await;
        let task = list["Results"][0].clone();
        if task["Status"] != "RUNNING" {
            return task;
        }
        assert!(Instant::now() < deadline, "{task}");
        // There is no event for clients.
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_moves_messages_back_to_their_queues_in_order() {
    let sqs = Sqs::start().await;
    let [a, b, dead] = with_dead_letters(&sqs, ".fifo").await;
    let started = sqs.call("StartMessageMoveTask", json!({"SourceArn": arn("dead.fifo")})).await;
    assert!(started["TaskHandle"].is_string());
    let task = ended(&sqs, "dead.fifo").await;
    assert_eq!(task["Status"], "COMPLETED");
    assert_eq!(task["SourceArn"], arn("dead.fifo"));
    assert_eq!(
        (&task["ApproximateNumberOfMessagesMoved"], &task["ApproximateNumberOfMessagesToMove"]),
        (&json!(6), &json!(6))
    );
    assert!(task["StartedTimestamp"].is_i64());
    for absent in ["TaskHandle", "DestinationArn", "MaxNumberOfMessagesPerSecond", "FailureReason"]
    {
        assert!(task.get(absent).is_none(), "{absent}");
    }
    assert!(sqs.receive(&dead).await.is_empty());
    for (url, name) in [(a, "a.fifo"), (b, "b.fifo")] {
        let all = json!({"AttributeNames": ["All"], "MaxNumberOfMessages": 10});
        let back = sqs.receive_with(&url, all).await;
        let expected = ["1", "2", "3"].map(|n| format!("{name}-{n}"));
        assert_eq!(bodies(&back), expected);
        assert!(back[0]["Attributes"].get("DeadLetterQueueSourceArn").is_none());
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_has_a_rate_and_can_be_cancelled() {
    let sqs = Sqs::start().await;
    let [.., dead] = with_dead_letters(&sqs, "").await;
    let other = sqs.queue("other").await;
    let start = json!({"SourceArn": arn("dead"), "DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1});
    let handle = sqs.call("StartMessageMoveTask", start.clone()).await["TaskHandle"].clone();
    // A wait for the first one: the move wakes it.
    let first = sqs.receive_with(&other, json!({"WaitTimeSeconds": 20})).await;
    assert_eq!(first.len(), 1);
    let (error, text) = sqs.refusal("StartMessageMoveTask", start.clone()).await;
    assert_eq!(error, "InvalidParameterValueException");
    assert!(text.starts_with("There is already a task running."), "{text}");
    let list =
        sqs.call("ListMessageMoveTasks", json!({"SourceArn": arn("dead"), "MaxResults": 10})).await;
    let task = &list["Results"][0];
    assert_eq!((&task["Status"], &task["TaskHandle"]), (&json!("RUNNING"), &handle));
    assert_eq!(
        (&task["MaxNumberOfMessagesPerSecond"], &task["DestinationArn"]),
        (&json!(1), &json!(arn("other")))
    );
    let cancelled = sqs.call("CancelMessageMoveTask", json!({"TaskHandle": handle})).await;
    let moved = cancelled["ApproximateNumberOfMessagesMoved"].as_i64().unwrap();
    assert!((1..6).contains(&moved), "{moved}");
    assert_eq!(ended(&sqs, "dead").await["Status"], "CANCELLED");
    let again = sqs.ask("CancelMessageMoveTask", json!({"TaskHandle": handle})).await;
    assert_eq!(
        (again.status, again.json()["message"].as_str()),
        (404, Some("Task does not exist."))
    );
    let left = 6 - moved;
    assert_eq!(sqs.number("select count(*) from seriatim.job where queue = 'dead'").await, left);
    // A queue that is removed ends its tasks.
    sqs.call("StartMessageMoveTask", start).await;
    sqs.call("DeleteQueue", json!({"QueueUrl": other})).await;
    let task = ended(&sqs, "dead").await;
    assert_eq!(
        (&task["Status"], &task["FailureReason"]),
        (&json!("FAILED"), &json!("AWS.SimpleQueueService.NonExistentQueue"))
    );
    assert!(!sqs.receive(&dead).await.is_empty());
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_cannot_be_are_refused_as_aws_does() {
    let sqs = Sqs::start().await;
    with_dead_letters(&sqs, "").await;
    sqs.queue("x.fifo").await;
    let missing = "The resource that you specified for the SourceArn parameter doesn't exist.";
    let nowhere = "The resource that you specified for the DestinationArn parameter doesn't exist.";
    let no_source = "Source queue must be configured as a Dead Letter Queue.";
    let format = "You must use this format to specify the SourceArn: arn:<partition>:<service>:<region>:<account-id>:<resource-id>";
    let invalid = "InvalidParameterValueException";
    for (operation, input, error, text) in [
        ("StartMessageMoveTask", json!({"SourceArn": arn("a")}), invalid, no_source),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": arn("none")}),
            "ResourceNotFoundException",
            missing,
        ),
        ("StartMessageMoveTask", json!({"SourceArn": "dead"}), invalid, format),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": arn("dead"), "DestinationArn": arn("none")}),
            "ResourceNotFoundException",
            nowhere,
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": arn("dead"), "DestinationArn": arn("dead")}),
            invalid,
            "are the same",
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": arn("dead"), "DestinationArn": arn("x.fifo")}),
            invalid,
            "type",
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": arn("dead"), "MaxNumberOfMessagesPerSecond": 501}),
            invalid,
            "between 1 and 500",
        ),
        (
            "ListMessageMoveTasks",
            json!({"SourceArn": arn("none")}),
            "ResourceNotFoundException",
            missing,
        ),
        (
            "ListMessageMoveTasks",
            json!({"SourceArn": arn("dead"), "MaxResults": 11}),
            invalid,
            "between 1 and 10",
        ),
        (
            "CancelMessageMoveTask",
            json!({"TaskHandle": "foobared"}),
            invalid,
            "Value for parameter TaskHandle is invalid.",
        ),
    ] {
        let refusal = sqs.refusal(operation, input.clone()).await;
        assert!(refusal.0 == error && refusal.1.contains(text), "{input}: {refusal:?}");
    }
    let answer = sqs.ask("StartMessageMoveTask", json!({"SourceArn": arn("none")})).await;
    assert_eq!(
        (answer.status, answer.query_error.as_deref()),
        (404, Some("ResourceNotFoundException;Sender"))
    );
    assert_eq!(
        sqs.call("ListMessageMoveTasks", json!({"SourceArn": arn("dead")})).await,
        json!({"Results": []})
    );
    // The Query protocol has the same.
    let fields = [("Action", "StartMessageMoveTask"), ("SourceArn", &arn("dead"))];
    assert!(sqs.query("/", &fields).await.body.contains("<TaskHandle>"));
    let fields = [("Action", "ListMessageMoveTasks"), ("SourceArn", &arn("dead"))];
    let list = sqs.query("/", &fields).await.body;
    assert!(list.contains("<ListMessageMoveTasksResultEntry><"), "{list}");
    sqs.end().await;
}

/// A dead-letter queue says whose dead letters it takes; what is set already stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_takes_those_that_it_allows() {
    let sqs = Sqs::start().await;
    let dead = sqs.queue("dead").await;
    let (first, second) = (sqs.queue("first").await, sqs.queue("second").await);
    let allow = |policy: Value| {
        let set =
            json!({"QueueUrl": dead, "Attributes": {"RedriveAllowPolicy": policy.to_string()}});
        sqs.call("SetQueueAttributes", set)
    };
    let name = |url: &str| {
        let set = json!({"QueueUrl": url, "Attributes": policy("dead", 3)});
        sqs.ask("SetQueueAttributes", set)
    };
    allow(json!({"redrivePermission": "denyAll"})).await;
    for (operation, input) in [
        ("CreateQueue", json!({"QueueName": "third", "Attributes": policy("dead", 3)})),
        ("SetQueueAttributes", json!({"QueueUrl": first, "Attributes": policy("dead", 3)})),
    ] {
        let (error, text) = sqs.refusal(operation, input).await;
        assert_eq!(error, "InvalidParameterValueException");
        assert!(
            text.contains(
                "for parameter RedrivePolicy is invalid. Reason: The RedriveAllowPolicy of"
            ),
            "{text}"
        );
    }
    let (error, _) = sqs.refusal("GetQueueUrl", json!({"QueueName": "third"})).await;
    assert_eq!(error, "QueueDoesNotExist", "it was not made");
    // By the Query protocol.
    let text = policy("dead", 3)["RedrivePolicy"].as_str().unwrap().to_owned();
    let fields = [
        ("Action", "SetQueueAttributes"),
        ("QueueUrl", &*first),
        ("Attribute.1.Name", "RedrivePolicy"),
        ("Attribute.1.Value", &*text),
    ];
    let refused = sqs.query("/", &fields).await;
    assert!(refused.body.contains("<Code>InvalidParameterValue</Code>"), "{}", refused.body);

    let by_queue = json!({"redrivePermission": "byQueue", "sourceQueueArns": [arn("first")]});
    allow(by_queue.clone()).await;
    assert_eq!(name(&first).await.status, 200);
    assert_eq!(name(&second).await.status, 400);
    let known = json!({"QueueUrl": dead, "AttributeNames": ["RedriveAllowPolicy"]});
    let known = sqs.call("GetQueueAttributes", known).await;
    assert_eq!(known["Attributes"]["RedriveAllowPolicy"], by_queue.to_string());
    allow(json!({"redrivePermission": "denyAll"})).await;
    let set = json!({"QueueUrl": first, "Attributes": {"DelaySeconds": "0"}});
    sqs.call("SetQueueAttributes", set).await;
    for policy in [json!({"redrivePermission": "allowAll"}), json!("")] {
        let text = policy.as_str().map_or_else(|| policy.to_string(), str::to_owned);
        let set = json!({"QueueUrl": dead, "Attributes": {"RedriveAllowPolicy": text}});
        sqs.call("SetQueueAttributes", set).await;
        assert_eq!(name(&second).await.status, 200);
    }
    // Its dead letters would come back to it for ever.
    let own = json!({"QueueUrl": dead, "Attributes": policy("dead", 3)});
    let (error, text) = sqs.refusal("SetQueueAttributes", own).await;
    assert_eq!(error, "InvalidAttributeValue");
    assert!(text.contains("cannot be its own dead-letter queue"), "{text}");
    let odd = json!({"QueueUrl": dead, "Attributes": {"RedriveAllowPolicy": "{}"}});
    let (error, text) = sqs.refusal("SetQueueAttributes", odd).await;
    assert_eq!(error, "InvalidAttributeValue");
    assert!(text.ends_with("it\u{2019}s in an unsupported format."), "{text}");
    sqs.end().await;
}

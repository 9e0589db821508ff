//! Messages: sent, received in order, deleted, given back; what a handle and a batch are told.

use md5::{Digest, Md5};
use serde_json::{Value, json};

use crate::support::{Sqs, bodies};

#[tokio::test(flavor = "multi_thread")]
async fn a_group_comes_in_order_also_after_a_failure() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    sqs.send_to(&url, "g", &["1", "2", "3"]).await;
    sqs.send_to(&url, "h", &["4"]).await;

    let first = sqs.receive_with(&url, json!({"AttributeNames": ["All"]})).await;
    assert_eq!(bodies(&first), ["1"]);
    assert_eq!(first[0]["Attributes"]["MessageGroupId"], "g");
    assert_eq!(first[0]["Attributes"]["MessageDeduplicationId"], "1");
    let others = sqs.receive(&url).await;
    assert_eq!(bodies(&others), ["4"], "the group waits for its first message");
    let visible = json!({"QueueUrl": url, "ReceiptHandle": first[0]["ReceiptHandle"], "VisibilityTimeout": 0});
    sqs.call("ChangeMessageVisibility", visible).await;

    let again = sqs
        .receive_with(
            &url,
            json!({"MaxNumberOfMessages": 10,
        "MessageSystemAttributeNames": ["ApproximateReceiveCount"]}),
        )
        .await;
    assert_eq!(bodies(&again), ["1", "2", "3"]);
    assert_eq!(again[0]["Attributes"], json!({"ApproximateReceiveCount": "2"}));
    assert_eq!(again[0]["MessageId"], first[0]["MessageId"]);
    for message in &again {
        assert_eq!(sqs.delete(&url, message).await.status, 200);
    }
    assert!(sqs.receive(&url).await.is_empty());
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_filled_from_one_group_first() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    for (group, bodies) in [("g1", ["1", "2"]), ("g2", ["3", "4"]), ("g1", ["5", "6"])] {
        sqs.send_to(&url, group, &bodies).await;
    }
    let most = json!({"MaxNumberOfMessages": 5});
    assert_eq!(bodies(&sqs.receive_with(&url, most).await), ["1", "2", "5", "6", "3"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_id_has_the_first_answer() {
    let sqs = Sqs::start().await;
    let url = sqs.queue_with("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    let send = |body, id: Value| {
        sqs.call(
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": "g",
            "MessageDeduplicationId": id}),
        )
    };
    let first = send("1", json!("id")).await;
    let again = send("2", json!("id")).await;
    assert_eq!(again["MessageId"], first["MessageId"]);
    assert_eq!(again["SequenceNumber"], first["SequenceNumber"]);
    let by_content = send("3", Value::Null).await;
    assert_eq!(send("3", Value::Null).await["MessageId"], by_content["MessageId"]);
    let batch = sqs
        .call(
            "SendMessageBatch",
            json!({"QueueUrl": url, "Entries": [
        {"Id": "a", "MessageBody": "4", "MessageGroupId": "g"},
        {"Id": "b", "MessageBody": "4", "MessageGroupId": "g"}]}),
        )
        .await;
    assert_eq!(batch["Successful"][0]["MessageId"], batch["Successful"][1]["MessageId"]);
    assert_eq!(bodies(&sqs.receive(&url).await), ["1", "3", "4"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_queue_wants_a_group_and_an_id() {
    let sqs = Sqs::start().await;
    let (fifo, standard) = (sqs.queue("q.fifo").await, sqs.queue("q").await);
    let missing = "MissingRequiredParameterException";
    let invalid = "InvalidParameterValueException";
    for (input, error) in [
        (json!({"MessageBody": "1", "MessageDeduplicationId": "1"}), missing),
        (json!({"MessageBody": "1", "MessageGroupId": "g"}), invalid),
        (
            json!({"MessageBody": "1", "MessageGroupId": "g g", "MessageDeduplicationId": "1"}),
            invalid,
        ),
        (json!({"MessageBody": "1", "MessageGroupId": "g", "MessageDeduplicationId": ""}), invalid),
        (
            json!({"MessageBody": "1", "MessageGroupId": "g", "MessageDeduplicationId": "1", "DelaySeconds": 2}),
            invalid,
        ),
        (json!({"MessageGroupId": "g", "MessageDeduplicationId": "1"}), missing),
        (
            json!({"MessageBody": "\u{1}", "MessageGroupId": "g", "MessageDeduplicationId": "1"}),
            "InvalidMessageContents",
        ),
    ] {
        let mut input = input;
        input["QueueUrl"] = fifo.as_str().into();
        assert_eq!(sqs.refusal("SendMessage", input.clone()).await.0, error, "{input}");
    }
    for (input, error) in [
        (json!({"MessageBody": ""}), missing),
        (json!({"MessageBody": "1", "DelaySeconds": 901}), invalid),
        (json!({"MessageBody": "1", "MessageDeduplicationId": "1"}), invalid),
        (
            json!({"MessageBody": "1", "MessageAttributes": {"a": {"DataType": "Odd", "StringValue": "1"}}}),
            invalid,
        ),
        (
            json!({"MessageBody": "1", "MessageSystemAttributes": {"a": {"DataType": "String", "StringValue": "1"}}}),
            invalid,
        ),
    ] {
        let mut input = input;
        input["QueueUrl"] = standard.as_str().into();
        assert_eq!(sqs.refusal("SendMessage", input.clone()).await.0, error, "{input}");
    }
    assert_eq!(sqs.number("select count(*) from seriatim.job").await, 0);
    // In a standard queue a group is no order.
    for body in ["1", "2"] {
        sqs.call("SendMessage", json!({"QueueUrl": standard, "MessageBody": body, "MessageGroupId": "g",
            "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}})).await;
    }
    let one = sqs.receive_with(&standard, json!({"AttributeNames": ["All"]})).await;
    assert_eq!(one[0]["Attributes"]["MessageGroupId"], "g");
    assert_eq!(one[0]["Attributes"]["AWSTraceHeader"], "Root=1");
    assert_eq!(sqs.receive(&standard).await.len(), 1);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_come_back_as_they_are_asked_for() {
    let sqs = Sqs::start().await;
    let url = sqs.queue_with("q", json!({"VisibilityTimeout": "0"})).await;
    let attributes = json!({"General": {"DataType": "String", "StringValue": "Kenobi"},
        "Hello": {"DataType": "String", "StringValue": "There"},
        "Help.Me": {"DataType": "String", "StringValue": "Me"}});
    let sent = sqs
        .call(
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": "msg",
        "MessageAttributes": attributes}),
        )
        .await;
    assert_eq!(sent["MD5OfMessageBody"], "6e2baaf3b97dbeef01c0043275f9a0e7");
    assert_eq!(sent["MD5OfMessageAttributes"], "4c360f3fdafd970e05fae2f149d997f5");
    let message = sqs
        .receive_with(&url, json!({"MessageAttributeNames": ["All"], "VisibilityTimeout": 30}))
        .await;
    assert_eq!(message[0]["MessageAttributes"], attributes);
    assert_eq!(message[0]["MD5OfMessageAttributes"], "4c360f3fdafd970e05fae2f149d997f5");
    assert!(message[0].get("Attributes").is_none());
    let many: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    let many = json!({"QueueUrl": url, "MessageAttributeNames": many});
    assert_eq!(sqs.refusal("ReceiveMessage", many).await.0, "InvalidParameterValueException");

    sqs.call(
        "SendMessage",
        json!({"QueueUrl": url, "MessageBody": "msg", "MessageAttributes": attributes}),
    )
    .await;
    let message = sqs.receive_with(&url, json!({"MessageAttributeNames": ["He*", "odd"]})).await;
    let names: Vec<_> =
        message[0]["MessageAttributes"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["Hello", "Help.Me"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_an_answer_for_each_entry() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let entry = |id: &str, body: &str| json!({"Id": id, "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": body});
    let mut odd = entry("b", "2");
    odd["MessageGroupId"] = "not a group".into();
    let batch = json!({"QueueUrl": url, "Entries": [entry("a", "1"), odd, entry("c", "3")]});
    let answer = sqs.call("SendMessageBatch", batch).await;
    let ids: Vec<_> = answer["Successful"].as_array().unwrap().iter().map(|of| &of["Id"]).collect();
    assert_eq!(ids, ["a", "c"]);
    assert_eq!(answer["Failed"][0]["Id"], "b");
    assert_eq!(answer["Failed"][0]["Code"], "InvalidParameterValue");
    assert_eq!(answer["Failed"][0]["SenderFault"], true);

    let received = sqs.receive(&url).await;
    assert_eq!(bodies(&received), ["1", "3"]);
    let batch = json!({"QueueUrl": url, "Entries": [
        {"Id": "x", "ReceiptHandle": "odd"},
        {"Id": "y", "ReceiptHandle": received[1]["ReceiptHandle"]},
        {"Id": "z", "ReceiptHandle": received[0]["ReceiptHandle"]}]});
    let answer = sqs.call("DeleteMessageBatch", batch).await;
    assert_eq!(answer["Successful"], json!([{"Id": "y"}, {"Id": "z"}]));
    assert_eq!(answer["Failed"][0]["Code"], "ReceiptHandleIsInvalid");
    assert_eq!(sqs.number("select count(*) from seriatim.job where status = 'succeeded'").await, 2);

    let many: Vec<Value> = (0..11).map(|n| entry(&n.to_string(), "x")).collect();
    let large = "x".repeat(600_000);
    for (entries, error) in [
        (json!([]), "EmptyBatchRequest"),
        (json!(many), "TooManyEntriesInBatchRequest"),
        (json!([entry("a", "1"), entry("a", "2")]), "BatchEntryIdsNotDistinct"),
        (json!([entry("a b", "1")]), "InvalidBatchEntryId"),
        (json!([entry("a", &large), entry("b", &large)]), "BatchRequestTooLong"),
    ] {
        // The ids are long as well, but the group of the entry is what is sound.
        let mut entries = entries;
        for entry in entries.as_array_mut().unwrap() {
            entry["MessageDeduplicationId"] = "id".into();
        }
        let batch = json!({"QueueUrl": url, "Entries": entries});
        assert_eq!(sqs.refusal("SendMessageBatch", batch).await.0, error);
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_expires_with_its_visibility_though_nobody_has_the_message() {
    let sqs = Sqs::start().await;
    let (fifo, standard) = (sqs.queue("q.fifo").await, sqs.queue("q").await);
    sqs.send_to(&fifo, "g", &["1"]).await;
    sqs.call("SendMessage", json!({"QueueUrl": standard, "MessageBody": "1"})).await;
    for url in [&fifo, &standard] {
        let message = sqs.receive(url).await.remove(0);
        sqs.lapse().await;
        if *url == fifo {
            let change = visible_in(9, url, &message);
            let (error, _) = sqs.refusal("ChangeMessageVisibility", change).await;
            assert_eq!(error, "InvalidParameterValueException");
            let deleted = sqs.delete(url, &message).await;
            assert!(deleted.body.contains("The receipt handle has expired."), "{}", deleted.body);
        } else {
            // It succeeds, and does nothing.
            sqs.call("ChangeMessageVisibility", visible_in(9, url, &message)).await;
        }
        let again = sqs.receive(url).await;
        assert_eq!(bodies(&again), ["1"]);
        sqs.lapse().await;
        let again = if *url == fifo { sqs.receive(url).await } else { again };
        assert_eq!(sqs.delete(url, &again[0]).await.status, 200);
        assert!(sqs.receive(url).await.is_empty());
    }
    assert_eq!(sqs.number("select count(*) from seriatim.job where status = 'succeeded'").await, 2);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_handle_is_told_from_a_forged_one() {
    let sqs = Sqs::start().await;
    let (fifo, standard) = (sqs.queue("q.fifo").await, sqs.queue("q").await);
    sqs.send_to(&fifo, "g", &["1"]).await;
    let old = sqs.receive(&fifo).await.remove(0);
    sqs.lapse().await;
    let new = sqs.receive(&fifo).await.remove(0);
    let deleted = sqs.delete(&fifo, &old).await;
    assert_eq!(deleted.status, 400);
    assert!(deleted.body.contains("The receipt handle has expired."), "{}", deleted.body);
    let (error, _) = sqs.refusal("ChangeMessageVisibility", visible_in(9, &fifo, &old)).await;
    assert_eq!(error, "InvalidParameterValueException");
    // The old handle has not hurt the new one. Once more is no error.
    assert_eq!(sqs.delete(&fifo, &new).await.status, 200);
    assert_eq!(sqs.delete(&fifo, &new).await.status, 200);
    let (_, text) = sqs.refusal("ChangeMessageVisibility", visible_in(9, &fifo, &new)).await;
    assert!(text.contains("Message does not exist"), "{text}");
    assert_eq!(sqs.number("select count(*) from seriatim.job where status = 'succeeded'").await, 1);

    sqs.send_to(&fifo, "g", &["2"]).await;
    let message = sqs.receive(&fifo).await.remove(0);
    // Signed for another queue, or cut.
    let other = sqs.delete(&standard, &message).await;
    assert!(other.body.contains("ReceiptHandleIsInvalid"), "{}", other.body);
    let cut = &message["ReceiptHandle"].as_str().unwrap()[1..];
    let (error, text) =
        sqs.refusal("DeleteMessage", json!({"QueueUrl": fifo, "ReceiptHandle": cut})).await;
    let expected = format!("The input receipt handle \"{cut}\" is not a valid receipt handle.");
    assert_eq!((&*error, text), ("ReceiptHandleIsInvalid", expected));
    sqs.end().await;
}

fn visible_in(seconds: i64, url: &str, message: &Value) -> Value {
    json!({
        "QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standard_queue_takes_old_handles() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    let old = sqs.receive(&url).await.remove(0);
    sqs.lapse().await;
    let new = sqs.receive(&url).await.remove(0);
    sqs.call("ChangeMessageVisibility", visible_in(1000, &url, &old)).await;
    let left = "select extract(epoch from lease_until - now())::int8 from seriatim.job";
    assert!(sqs.number(left).await > 900);
    sqs.call("ChangeMessageVisibility", visible_in(0, &url, &old)).await;
    // It is in flight no more, and stays so.
    sqs.call("ChangeMessageVisibility", visible_in(9, &url, &new)).await;
    sqs.receive(&url).await.remove(0);
    for handle in [&old, &old, &new] {
        assert_eq!(sqs.delete(&url, handle).await.status, 200);
        assert_eq!(
            sqs.number("select count(*) from seriatim.job where status = 'succeeded'").await,
            1
        );
    }
    let (_, text) = sqs.refusal("ChangeMessageVisibility", visible_in(9, &url, &old)).await;
    assert!(text.contains("Message does not exist"), "{text}");
    sqs.end().await;
}

/// As the service itself takes them, whatever its documents say.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_attributes_have_letters_of_any_language() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let name = "attr.1\u{f8}\u{df}\u{e4}";
    let attributes = json!({name: {"DataType": "String", "StringValue": "v"}});
    let send = json!({"QueueUrl": url, "MessageBody": "1", "MessageAttributes": attributes});
    let digest = sqs.call("SendMessage", send).await["MD5OfMessageAttributes"].clone();
    let received = sqs.receive_with(&url, json!({"MessageAttributeNames": [name]})).await;
    assert_eq!(received[0]["MessageAttributes"], attributes);
    assert_eq!(received[0]["MD5OfMessageAttributes"], digest);
    for odd in ["a b", "a\u{1f600}", "a\u{b7}b"] {
        let attributes = json!({odd: {"DataType": "String", "StringValue": "v"}});
        let send = json!({"QueueUrl": url, "MessageBody": "1", "MessageAttributes": attributes});
        assert_eq!(sqs.refusal("SendMessage", send).await.0, "InvalidParameterValueException");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_standard_queue_that_was_given_back_is_deleted() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    for body in ["1", "2"] {
        sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
    }
    let received = sqs.receive(&url).await;
    for message in &received {
        sqs.call("ChangeMessageVisibility", visible_in(0, &url, message)).await;
    }
    assert_eq!(sqs.delete(&url, &received[0]).await.status, 200);
    assert_eq!(bodies(&sqs.receive(&url).await), [received[1]["Body"].as_str().unwrap()]);
    // Out of receives it is in another queue, which is not the handle's.
    sqs.queue("dead").await;
    let policy = json!({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead",
        "maxReceiveCount": 1});
    let last = sqs.queue_with("last", json!({"RedrivePolicy": policy.to_string()})).await;
    sqs.call("SendMessage", json!({"QueueUrl": last, "MessageBody": "3"})).await;
    let message = sqs.receive(&last).await.remove(0);
    sqs.call("ChangeMessageVisibility", visible_in(0, &last, &message)).await;
    assert_eq!(sqs.delete(&last, &message).await.status, 200);
    assert_eq!(bodies(&sqs.receive("dead").await), ["3"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn visibilities_of_a_batch_may_differ() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    for body in ["1", "2", "3"] {
        sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
    }
    let received = sqs.receive(&url).await;
    let entry = |n: usize, seconds: i64| json!({"Id": n.to_string(), "ReceiptHandle": received[n]["ReceiptHandle"], "VisibilityTimeout": seconds});
    let batch = json!({"QueueUrl": url, "Entries": [entry(2, 0), entry(0, 43_201), entry(1, 600)]});
    let answer = sqs.call("ChangeMessageVisibilityBatch", batch).await;
    assert_eq!(answer["Successful"], json!([{"Id": "2"}, {"Id": "1"}]));
    assert_eq!(answer["Failed"][0]["Id"], "0");
    assert_eq!(bodies(&sqs.receive(&url).await), [received[2]["Body"].as_str().unwrap()]);
    let longest = "select round(extract(epoch from max(lease_until) - clock_timestamp()))::int8 from seriatim.job";
    assert!((500..=600).contains(&sqs.number(longest).await));
    sqs.end().await;
}

/// Characters that SQS refuses cannot be told in XML. SDKs compare the checksum of each body.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_sql_wrote_has_its_checksum_in_both_protocols() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    sqs.sql(
        "begin;
         select seriatim.enqueue('q', null, payload => '\\x6101');
         select seriatim.enqueue('q', null, payload => convert_to(U&'\\FFFE', 'UTF8'));
         select seriatim.enqueue('q', to_jsonb(U&'a\\FFFF\\0001'::text));
         select seriatim.enqueue('q', null, payload => 'text',
           attributes => jsonb_build_object(U&'a\\0001', '{\"DataType\": \"String\", \"StringValue\": \"v\"}'::jsonb));
         commit",
    )
    .await;
    let expected = ["YQE=", "77++", r#""a\uffff\u0001""#, "text"];
    let all = json!({"MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "MessageAttributeNames": ["All"]});
    let mut received = sqs.receive_with(&url, all).await;
    received.sort_by_key(|message| message["MessageId"].as_str().unwrap()[17..].to_owned());
    assert_eq!(bodies(&received), expected);
    assert!(received.iter().all(|message| message.get("MessageAttributes").is_none()));
    let sum = |body: &str| format!("{:032x}", u128::from_be_bytes(Md5::digest(body).into()));
    for (message, body) in received.iter().zip(expected) {
        assert_eq!(message["MD5OfBody"], sum(body));
    }
    let fields = [
        ("Action", "ReceiveMessage"),
        ("MaxNumberOfMessages", "10"),
        ("MessageAttributeName.1", "All"),
    ];
    let xml = sqs.query("/000000000000/q", &fields).await.body;
    assert!(!xml.contains('\u{fffd}') && !xml.contains("MessageAttribute"), "{xml}");
    for body in expected {
        let told = format!("<Body>{}</Body>", body.replace('"', "&quot;"));
        let summed = format!("<MD5OfBody>{}</MD5OfBody>", sum(body));
        assert!(xml.contains(&told) && xml.contains(&summed), "{body}: {xml}");
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_sql_are_received_and_messages_are_jobs_of_sql() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    sqs.sql(
        "begin;
         select seriatim.enqueue('q.fifo', '{\"b\": [1, null]}', 'g', headers => '{\"AWSTraceHeader\": \"Root=1\"}',
           attributes => '{\"a\": {\"DataType\": \"String\", \"StringValue\": \"v\"}, \"odd\": 1}');
         select seriatim.enqueue('q.fifo', null, 'g', payload => 'text');
         select seriatim.enqueue('q.fifo', null, 'g', payload => '\\xff00');
         commit",
    )
    .await;
    let all = json!({"MaxNumberOfMessages": 10, "AttributeNames": ["AWSTraceHeader"], "MessageAttributeNames": ["All"]});
    let received = sqs.receive_with(&url, all).await;
    assert_eq!(bodies(&received), [r#"{"b": [1, null]}"#, "text", "/wA="]);
    assert_eq!(
        received[0]["MessageAttributes"],
        json!({"a": {"DataType": "String", "StringValue": "v"}})
    );
    assert_eq!(received[0]["Attributes"], json!({"AWSTraceHeader": "Root=1"}));

    let other = sqs.queue("other.fifo").await;
    sqs.sql("select seriatim.enqueue('q.fifo', '1', 'm', attributes => '{\"a\": {\"DataType\": \"String\", \"StringValue\": \"v\"}}')").await;
    sqs.sql("select seriatim.move_jobs(array[max(id)], 'other.fifo') from seriatim.job").await;
    let moved = sqs.receive_with(&other, json!({"MessageAttributeNames": ["All"]})).await;
    assert_eq!(moved[0]["MessageAttributes"]["a"]["StringValue"], "v");

    sqs.send_to(&url, "h", &["1"]).await;
    let of_sql = "select count(*) from seriatim.receive('q.fifo', 1, group_id => 'h')
        where convert_from(payload, 'UTF8') = '1' and content_type = 'text/plain; charset=utf-8' and dedup_id = '1'";
    assert_eq!(sqs.number(of_sql).await, 1);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_its_receives_and_its_time() {
    let sqs = Sqs::start().await;
    let dead = sqs.queue("dead").await;
    let policy =
        json!({"deadLetterTargetArn": "arn:aws:sqs:r:000000000000:dead", "maxReceiveCount": 2});
    let url = sqs
        .queue_with(
            "q",
            json!({"RedrivePolicy": policy.to_string(), "MessageRetentionPeriod": "60"}),
        )
        .await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    let mut first_receive = None;
    for receives in ["1", "2"] {
        let message = sqs.receive_with(&url, json!({"AttributeNames": ["All"]})).await.remove(0);
        let attributes = &message["Attributes"];
        assert_eq!(attributes["ApproximateReceiveCount"], receives);
        let first = attributes["ApproximateFirstReceiveTimestamp"].clone();
        assert_eq!(*first_receive.get_or_insert(first.clone()), first);
        let input = json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0});
        sqs.call("ChangeMessageVisibility", input).await;
    }
    assert!(sqs.receive(&url).await.is_empty());
    assert_eq!(bodies(&sqs.receive(&dead).await), ["1"]);
    // A message without a policy is received as often as it takes; one that is too old is not.
    let url = sqs.queue("other").await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    for _ in 0..12 {
        let message = sqs.receive(&url).await.remove(0);
        let input = json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0});
        sqs.call("ChangeMessageVisibility", input).await;
    }
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "2"})).await;
    sqs.sql("update seriatim.job set expires_at = clock_timestamp() where queue = 'other' and attempts = 0").await;
    assert_eq!(bodies(&sqs.receive(&url).await), ["1"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_group_that_came_together_have_one_visibility() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    sqs.send_to(&url, "g", &["1", "2", "3"]).await;
    let received = sqs.receive(&url).await;
    assert_eq!(bodies(&received), ["1", "2", "3"]);
    let change = |of: usize, seconds: i64| {
        let handle = &received[of]["ReceiptHandle"];
        json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": seconds})
    };
    sqs.call("ChangeMessageVisibility", change(2, 600)).await;
    let left = "select round(extract(epoch from ready_at - clock_timestamp()))::int8 from seriatim.queue_group";
    assert!((500..=600).contains(&sqs.number(left).await));
    // The second goes back, and the third with it; the first stays in flight.
    sqs.call("ChangeMessageVisibility", change(1, 0)).await;
    assert!(sqs.receive(&url).await.is_empty());
    let third = sqs.delete(&url, &received[2]).await;
    assert!(third.body.contains("The receipt handle has expired."), "{}", third.body);
    assert_eq!(sqs.delete(&url, &received[0]).await.status, 200);
    assert_eq!(bodies(&sqs.receive(&url).await), ["2", "3"]);
    sqs.end().await;
}

/// Numbers come as they were sent; what is no decimal number is refused, by both protocols.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_decimal_and_stay_as_they_were_sent() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let attribute = |number: &str| json!({"n": {"DataType": "Number", "StringValue": number}});
    for number in ["+5", "007", "1.50", "-1e3"] {
        let message =
            json!({"QueueUrl": url, "MessageBody": "b", "MessageAttributes": attribute(number)});
        sqs.call("SendMessage", message).await;
        let received = sqs.receive_with(&url, json!({"MessageAttributeNames": ["n"]})).await;
        assert_eq!(received[0]["MessageAttributes"], attribute(number));
    }
    for number in ["nan", "inf", "0x1f", " 5", "1e127"] {
        let message =
            json!({"QueueUrl": url, "MessageBody": "b", "MessageAttributes": attribute(number)});
        let (error, text) = sqs.refusal("SendMessage", message).await;
        assert_eq!(error, "InvalidParameterValueException");
        assert!(text.contains("message (user) attribute 'n'"), "{text}");
        let fields = [
            ("Action", "SendMessage"),
            ("QueueUrl", &*url),
            ("MessageBody", "b"),
            ("MessageAttribute.1.Name", "n"),
            ("MessageAttribute.1.Value.DataType", "Number"),
            ("MessageAttribute.1.Value.StringValue", number),
        ];
        let refused = sqs.query("/", &fields).await;
        assert!(refused.body.contains("<Code>InvalidParameterValue</Code>"), "{}", refused.body);
    }
    sqs.end().await;
}

/// Tracing agents send the trace in a header of the request. A message's own trace takes
/// precedence.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_of_the_request_is_that_of_its_messages() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let own = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}});
    let entry = |id: &str| json!({"Id": id, "MessageBody": id});
    let mut with_own = entry("3");
    with_own["MessageSystemAttributes"] = own;
    for (operation, input) in [
        ("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})),
        ("SendMessageBatch", json!({"QueueUrl": url, "Entries": [entry("2"), with_own]})),
    ] {
        let mut request = sqs.request(operation, &input);
        request.headers_mut().insert("x-amzn-trace-id", "Root=request".parse().unwrap());
        let sent = sqs.send(request).await;
        assert_eq!(sent.status, 200, "{}", sent.body);
    }
    let blank = json!({"QueueUrl": url, "MessageBody": "4"});
    let mut blank = sqs.request("SendMessage", &blank);
    blank.headers_mut().insert("x-amzn-trace-id", " ".parse().unwrap());
    assert_eq!(sqs.send(blank).await.status, 200);
    let asked = json!({"AttributeNames": ["AWSTraceHeader"], "MaxNumberOfMessages": 10});
    let mut seen: Vec<_> = sqs.receive_with(&url, asked).await;
    seen.sort_by_key(|message| message["Body"].to_string());
    let traces: Vec<_> = seen.iter().map(|of| &of["Attributes"]["AWSTraceHeader"]).collect();
    let expected = [json!("Root=request"), json!("Root=request"), json!("Root=own"), json!(null)];
    assert!(traces.into_iter().eq(&expected), "{seen:?}");
    sqs.end().await;
}

/// Settings that SQS has not hold for its clients too.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_for_receives_and_a_pause_keeps_messages() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let pool = sqs.database.pool();
    for group in ["a", "b", "c"] {
        let sent = json!({
            "QueueUrl": url, "MessageBody": group, "MessageGroupId": group,
            "MessageDeduplicationId": group,
        });
        sqs.call("SendMessage", sent).await;
    }
    let paused = "select seriatim.pause('q.fifo', 'a', 'a test')";
    sqlx::raw_sql(paused).execute(pool).await.unwrap();
    let rate = r#"select seriatim.configure_queue('q.fifo', '{"rate": 1, "rate_per": "1 h"}')"#;
    sqlx::raw_sql(rate).execute(pool).await.unwrap();
    let asked = || json!({"MaxNumberOfMessages": 10});
    assert_eq!(bodies(&sqs.receive_with(&url, asked()).await), ["b"], "one start an hour");
    assert_eq!(bodies(&sqs.receive_with(&url, asked()).await), [""; 0]);
    let rate = r#"select seriatim.configure_queue('q.fifo', '{"rate": null}')"#;
    sqlx::raw_sql(rate).execute(pool).await.unwrap();
    assert_eq!(bodies(&sqs.receive_with(&url, asked()).await), ["c"], "a is paused");
    sqs.end().await;
}

//! Requests that are odd: too large, cut short, of no protocol; and the Query protocol.

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{PATIENCE, Sqs};

#[tokio::test(flavor = "multi_thread")]
async fn odd_requests_are_refused_with_words() {
    let sqs = Sqs::start().await;
    let post = |target: &'static str, body: Vec<u8>| {
        let request = Request::builder()
            .method("POST")
            .uri(format!("http://{}/", sqs.address))
            .header("host", &sqs.address)
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", target)
            .body(Full::<Bytes>::from(body))
            .unwrap();
        sqs.send(request)
    };
    for (target, body, status, error) in [
        ("AmazonSQS.ListQueues", "{", 400, "SerializationException"),
        ("AmazonSQS.ListQueues", "[]", 400, "SerializationException"),
        ("AmazonSQS.ListQueues", "\u{0}", 400, "SerializationException"),
        ("AmazonSQS.ListQueues", r#"{"MaxResults": "x"}"#, 400, "SerializationException"),
        ("AmazonSQS.Nothing", "{}", 400, "UnknownOperationException"),
        ("Other.ListQueues", "{}", 400, "UnknownOperationException"),
        ("AmazonSQS.SendMessage", "{}", 400, "MissingRequiredParameterException"),
        ("AmazonSQS.AddPermission", "{}", 400, "MissingRequiredParameterException"),
        ("AmazonSQS.StartMessageMoveTask", "{}", 400, "MissingRequiredParameterException"),
    ] {
        let answer = post(target, body.into()).await;
        assert_eq!(answer.status, status, "{target} {body}");
        assert!(answer.body.contains(error), "{target} {body}: {}", answer.body);
    }
    assert_eq!(post("AmazonSQS.ListQueues", Vec::new()).await.status, 200);
    assert_eq!(post("AmazonSQS.ListQueues", vec![0xff; 10]).await.status, 400);
    sqs.end().await;
}

/// Refused by its length, before it comes; and read nevertheless, so that a client that sends all
/// of it before it reads sees the answer, and no reset.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_is_refused_and_the_client_sees_it() {
    let sqs = Sqs::start().await;
    let size = 9 << 20;
    let head = |more: &str| {
        format!(
            "POST / HTTP/1.1\r\nhost: {}\r\nx-amz-target: AmazonSQS.ListQueues\r\n{more}\r\n",
            sqs.address
        )
    };
    let sized = format!("content-length: {size}\r\n");
    let mut stream = TcpStream::connect(&sqs.address).await.unwrap();
    stream.write_all(head(&sized).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    drop(stream);

    let chunked = format!("{size:x}\r\n{}\r\n0\r\n\r\n", " ".repeat(size));
    for (head, body) in [
        (head(&sized), " ".repeat(size)),
        (head("transfer-encoding: chunked\r\n"), chunked),
        // It gets its answer in place of the word to go on.
        (head(&format!("{sized}expect: 100-continue\r\n")), String::new()),
    ] {
        for _ in 0..10 {
            let mut stream = TcpStream::connect(&sqs.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
            let mut said = String::new();
            timeout(PATIENCE, stream.read_to_string(&mut said)).await.unwrap().unwrap();
            assert!(said.starts_with("HTTP/1.1 413"), "{said}");
            assert!(said.contains("RequestEntityTooLarge") && said.contains("4194304"), "{said}");
        }
    }
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_an_end_is_bounded() {
    let sqs = Sqs::start().await;
    let mut stream = TcpStream::connect(&sqs.address).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {}\r\nx-amz-target: AmazonSQS.ListQueues\r\ntransfer-encoding: chunked\r\n\r\n",
        sqs.address
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reads, mut writes) = stream.into_split();
    let endless = tokio::spawn(async move {
        let chunk = format!("100000\r\n{}\r\n", " ".repeat(0x0010_0000));
        while writes.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let mut answer = vec![0; 100];
    let read = timeout(PATIENCE, reads.read(&mut answer)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 413"));
    drop(reads);
    endless.abort();

    // Half a body, and a client that hangs up, hold up no other.
    let mut half = TcpStream::connect(&sqs.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    half.write_all(head.as_bytes()).await.unwrap();
    sqs.call("ListQueues", json!({})).await;
    drop(half);
    sqs.call("ListQueues", json!({})).await;
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_of_a_queue_takes_the_actions_of_a_queue() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let get = |address: String| {
        let request = Request::get(address).header("host", &sqs.address);
        sqs.send(request.body(Full::<Bytes>::default()).unwrap())
    };
    for (action, status, word) in [
        ("?Action=ListQueues", 400, "<Code>InvalidAction</Code>"),
        ("?Action=CreateQueue&QueueName=p", 400, "<Code>InvalidAction</Code>"),
        ("?Action=GetQueueUrl&QueueName=q", 200, "</QueueUrl>"),
        ("?Action=ReceiveMessage", 200, "<ReceiveMessageResult/>"),
    ] {
        let answer = get(format!("{url}{action}")).await;
        assert_eq!(answer.status, status, "{action}: {}", answer.body);
        assert!(answer.body.contains(word), "{action}: {}", answer.body);
    }
    let none = get(url).await;
    assert_eq!((none.status, &*none.body), (404, "<UnknownOperationException/>"));
    // A proxy's path is no queue.
    let listed = get(format!("http://{}/sqs/?Action=ListQueues", sqs.address)).await;
    assert!(listed.body.contains("<ListQueuesResult><QueueUrl>"), "{}", listed.body);
    sqs.end().await;
}

/// As Perl's `Amazon::SQS::Simple` sends it; and as a proxy may forward JSON without a target.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_with_a_target_is_of_the_query_protocol() {
    let sqs = Sqs::start().await;
    let ask = |content_type: &'static str, target: &'static str, body: &'static str| {
        let request = Request::post(format!("http://{}/", sqs.address))
            .header("host", &sqs.address)
            .header("content-type", content_type)
            .header("x-amz-target", target);
        sqs.send(request.body(Full::<Bytes>::from(body)).unwrap())
    };
    let (form, json) = ("application/x-www-form-urlencoded", "application/x-amz-json-1.0");
    for target in ["", "sqs", "AmazonSimpleQueueService.ListQueues"] {
        let answer = ask(form, target, "Action=ListQueues&Version=2012-11-05").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body.contains("<ListQueuesResponse"), "{}", answer.body);
        let odd = ask(json, target, "{}").await;
        assert_eq!(
            (odd.status, &odd.json()["__type"] == "com.amazonaws.sqs#UnknownOperationException"),
            (400, true)
        );
    }
    assert_eq!(ask(form, "AmazonSQS.ListQueues", "{}").await.json(), json!({}));
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_query_protocol_has_the_same_operations() {
    let sqs = Sqs::start().await;
    let made = sqs
        .query(
            "/",
            &[
                ("Action", "CreateQueue"),
                ("QueueName", "q.fifo"),
                ("Attribute.1.Name", "FifoQueue"),
                ("Attribute.1.Value", "true"),
                ("Version", "2012-11-05"),
            ],
        )
        .await;
    let url = format!("http://{}/000000000000/q.fifo", sqs.address);
    assert!(
        made.body.contains(&format!("<CreateQueueResult><QueueUrl>{url}</QueueUrl>")),
        "{}",
        made.body
    );
    let sent = sqs
        .query(
            "/000000000000/q.fifo",
            &[
                ("Action", "SendMessage"),
                ("MessageBody", "<a>&\r\n"),
                ("MessageGroupId", "g"),
                ("MessageDeduplicationId", "1"),
                ("MessageAttribute.1.Name", "k"),
                ("MessageAttribute.1.Value.DataType", "String"),
                ("MessageAttribute.1.Value.StringValue", "v"),
            ],
        )
        .await;
    assert!(sent.body.contains("<SendMessageResult><MD5OfMessageAttributes>"), "{}", sent.body);
    let request = Request::builder()
        .uri(format!("{url}?Action=ReceiveMessage&MaxNumberOfMessages=10&AttributeName.1=All&MessageAttributeName.1=k"))
        .header("host", &sqs.address)
        .body(Full::default())
        .unwrap();
    let received = sqs.send(request).await;
    assert_eq!(received.status, 200);
    for part in [
        "<Body>&lt;a&gt;&amp;&#xD;\n</Body>",
        "<Attribute><Name>MessageGroupId</Name><Value>g</Value></Attribute>",
        "<MessageAttribute><Name>k</Name><Value><DataType>String</DataType><StringValue>v</StringValue></Value></MessageAttribute>",
    ] {
        assert!(received.body.contains(part), "{part} in {}", received.body);
    }
    let none = sqs.query("/", &[("Action", "GetQueueUrl"), ("QueueName", "none")]).await;
    assert_eq!(none.status, 400);
    assert!(none.body.contains(
        "<Error><Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>\
         <Message>The specified queue does not exist for this wsdl version.</Message><Detail/></Error>"
    ), "{}", none.body);
    let odd = sqs.query("/", &[("Action", "Nothing")]).await;
    assert!(odd.body.contains("<Code>InvalidAction</Code>"), "{}", odd.body);
    sqs.end().await;
}

//! Clients that mean no good, or know no better: over bare connections.

use std::time::{Duration, Instant};

use serde_json::json;
use seriatim_sqs::{Access, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use crate::load::resident;
use crate::size::size;
use crate::support::{PATIENCE, Sqs, bodies};

/// Writes these bytes to a new connection.
async fn wrote(sqs: &Sqs, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&sqs.address).await.unwrap();
    // The server may answer and close before it has read all.
    _ = stream.write_all(bytes).await;
    stream
}

/// Returns all that the server says until it closes.
async fn said(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("the server closes");
    String::from_utf8_lossy(&said).into_owned()
}

/// The head of a request that is the last one of its connection.
fn head(sqs: &Sqs, first: &str, more: &str) -> String {
    format!("{first}\r\nhost: {}\r\nconnection: close\r\n{more}\r\n", sqs.address)
}

const LIST: &str = "x-amz-target: AmazonSQS.ListQueues\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn odd_http_is_refused_and_disturbs_nobody() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    sqs.send_to(&url, "g", &["1"]).await;
    let many = "x-many: 1\r\n".repeat(500);
    let wide = format!("x-wide: {}\r\n", "x".repeat(200_000));
    let form = |body: &str| {
        let size = format!("content-length: {}\r\n", body.len());
        head(&sqs, "POST / HTTP/1.1", &size) + body
    };
    let fields = (0..10_000).map(|n| format!("&Attribute.{n}.Name=a")).collect::<Vec<_>>().concat();
    let cases = [
        (String::from("\0\u{1}\u{2} nonsense\r\n\r\n"), " 400 ", ""),
        (String::from("GET / HTTP/3.0\r\n\r\n"), " 400 ", ""),
        (head(&sqs, "POST / HTTP/1.1", &many), " 431 ", ""),
        (head(&sqs, "POST / HTTP/1.1", &wide), " 431 ", ""),
        (head(&sqs, &format!("GET /?{} HTTP/1.1", "x".repeat(70_000)), ""), " 414 ", ""),
        (head(&sqs, "POST / HTTP/1.1", "content-length: -1\r\n"), " 400 ", ""),
        (head(&sqs, "POST / HTTP/1.1", "content-length: 1\r\ncontent-length: 2\r\n"), " 400 ", ""),
        (head(&sqs, "PUT / HTTP/1.1", LIST), " 400 ", "UnknownOperationException"),
        (head(&sqs, "GET / HTTP/1.1", LIST), " 400 ", "UnknownOperationException"),
        (head(&sqs, "DELETE /?Action=ListQueues HTTP/1.1", ""), " 400 ", "InvalidAction"),
        (head(&sqs, "OPTIONS * HTTP/1.1", ""), " 400 ", "InvalidAction"),
        (head(&sqs, "HEAD /?Action=PurgeQueue&QueueUrl=q.fifo HTTP/1.1", ""), " 400 ", ""),
        (head(&sqs, "GET /?Action=ListQueues HTTP/1.0", ""), "200 OK", "q.fifo"),
        (String::from("GET /?Action=ListQueues HTTP/1.0\r\n\r\n"), " 403 ", "AccessDenied"),
        (form(&format!("Action=CreateQueue{fields}")), " 400 ", "MalformedInput"),
        (form("Action=SendMessage&QueueUrl=q.fifo&MessageBody=%ff"), " 400 ", "MalformedInput"),
        (form("Action=GetQueueUrl&QueueName=%00"), " 400 ", "NonExistentQueue"),
        (form("Action=%0d%0aListQueues"), " 400 ", "InvalidAction"),
    ];
    for (request, status, word) in &cases {
        let said = said(wrote(&sqs, request.as_bytes()).await).await;
        let start = &request[..request.len().min(80)];
        let line = said.lines().next().unwrap_or_default().to_owned() + " ";
        assert!(line.contains(status) && said.contains(word), "{start:?}: {said:?}");
    }
    let received = sqs.receive(&url).await;
    assert_eq!(bodies(&received), ["1"], "nothing was purged");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_json_is_refused() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let deep = format!("{{\"QueueUrl\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let send = |member: &str| {
        format!(
            r#"{{"QueueUrl":"{url}","MessageBody":"b","MessageGroupId":"g","MessageDeduplicationId":"d",{member}}}"#
        )
    };
    let attribute = r#"{"DataType":"String","StringValue":"v"}"#;
    let cases = [
        ("SendMessage", deep, "SerializationException"),
        ("SendMessage", send(r#""MessageBody":"\ud800""#), "SerializationException"),
        ("SendMessage", send(r#""MessageBody":"a\u0000""#), "InvalidMessageContents"),
        ("SendMessage", send(r#""MessageBody":"\uffff""#), "InvalidMessageContents"),
        ("SendMessage", send(r#""MessageBody":17"#), "SerializationException"),
        ("SendMessage", send(r#""DelaySeconds":1e999"#), "SerializationException"),
        ("SendMessage", send(r#""DelaySeconds":99999999999999999999"#), "SerializationException"),
        ("SendMessage", send(r#""MessageGroupId":"a\u0000""#), "InvalidParameterValue"),
        ("SendMessage", send(r#""MessageGroupId":"\ud83d\ude00""#), "InvalidParameterValue"),
        (
            "SendMessage",
            send(&format!(r#""MessageAttributes":{{"a\u0000":{attribute}}}"#)),
            "InvalidParameterValue",
        ),
        (
            "CreateQueue",
            r#"{"QueueName":"p","Attributes":{"Policy":"\u0000"}}"#.to_owned(),
            "InvalidAttributeValue",
        ),
        ("CreateQueue", r#"{"QueueName":"a/../b"}"#.to_owned(), "InvalidParameterValue"),
        ("CreateQueue", r#"{"QueueName":"'; drop table seriatim.job; --"}"#.to_owned(), "Invalid"),
        (
            "UntagQueue",
            format!(r#"{{"QueueUrl":"{url}","TagKeys":["\u0000"]}}"#),
            "InvalidParameterValue",
        ),
        (
            "ReceiveMessage",
            format!(r#"{{"QueueUrl":"{url}","VisibilityTimeout":-1}}"#),
            "InvalidParameterValue",
        ),
        (
            "DeleteMessage",
            format!(r#"{{"QueueUrl":"{url}","ReceiptHandle":"{}"}}"#, "A".repeat(100_000)),
            "ReceiptHandleIsInvalid",
        ),
    ];
    for (operation, body, error) in cases {
        let mut request = sqs.request(operation, &json!({}));
        *request.body_mut() = body.clone().into();
        let answer = sqs.send(request).await;
        let start: String = body.chars().take(200).collect();
        assert_eq!(answer.status, 400, "{start}: {}", answer.body);
        assert!(answer.body.contains(error), "{start}: {}", answer.body);
    }
    assert_eq!(sqs.number("select count(*) from seriatim.job").await, 0);
    // If a member comes twice, the last one counts, as in the SDKs' own readers.
    let mut request = sqs.request("SendMessage", &json!({}));
    *request.body_mut() = send(r#""MessageBody":"first","MessageBody":"last""#).into();
    assert_eq!(sqs.send(request).await.status, 200);
    // And the host in the address of a queue does not matter.
    let other = "http://other.example/000000000000/q.fifo";
    assert_eq!(bodies(&sqs.receive(other).await), ["last"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_and_chunked_requests_are_answered_in_order() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let request = |operation: &str, body: &str, more: &str| {
        format!(
            "POST / HTTP/1.1\r\nhost: {}\r\nx-amz-target: AmazonSQS.{operation}\r\n{more}\r\n{body}",
            sqs.address
        )
    };
    let mut all = String::new();
    for n in 0..100 {
        let body = json!({"QueueUrl": url, "MessageBody": n.to_string(), "MessageGroupId": "g",
            "MessageDeduplicationId": n.to_string()});
        let body = body.to_string();
        if n % 2 == 0 {
            let size = format!("content-length: {}\r\n", body.len());
            all += &request("SendMessage", &body, &size);
        } else {
            let (first, last) = body.split_at(body.len() / 2);
            let chunks = format!(
                "{:x};name=value\r\n{first}\r\n{:x}\r\n{last}\r\n0\r\n\r\n",
                first.len(),
                last.len()
            );
            all += &request("SendMessage", &chunks, "transfer-encoding: chunked\r\n");
        }
    }
    all += &request("ListQueues", "", "connection: close\r\n");
    let said = said(wrote(&sqs, all.as_bytes()).await).await;
    assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 101, "{said}");
    assert!(said.contains("q.fifo"), "the last one is a list: {said}");
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let received = sqs.receive(&url).await;
        seen.extend(bodies(&received).iter().map(|body| body.parse::<u32>().unwrap()));
        for message in &received {
            assert_eq!(sqs.delete(&url, message).await.status, 200);
        }
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    sqs.end().await;
}

/// Answers that nobody reads have a memory of their own. It is measured in a process of its own:
/// other tests run in this one.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_take_bounded_memory() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "hostile::measured_alone", "--ignored", "--nocapture"]);
    let output = alone.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the test before runs it"]
async fn measured_alone() {
    let config = Config::new().access(Access::Anonymous).answer_memory(32 << 20);
    let sqs = Sqs::start_with(config, 5).await;
    let url = sqs.queue("q").await;
    let body = "x".repeat(1 << 20);
    for _ in 0..10 {
        sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
    }
    let ask = json!({"QueueUrl": url, "VisibilityTimeout": 0, "MaxNumberOfMessages": 10});
    let text = ask.to_string();
    let more =
        format!("x-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {}\r\n", text.len());
    let request = head(&sqs, "POST / HTTP/1.1", &more) + &text;
    let before = resident();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(wrote(&sqs, request.as_bytes()).await);
    }
    let (begun, mut most, mut longest) = (Instant::now(), 0, Duration::ZERO);
    // All have asked by now: without a limit their answers would be in memory soon.
    while begun.elapsed() < Duration::from_secs(size(4, 10)) {
        // A client that reads is answered in the meantime.
        let asked = Instant::now();
        let one = json!({"QueueUrl": url, "VisibilityTimeout": 0});
        let received = timeout(PATIENCE, sqs.ask("ReceiveMessage", one)).await.unwrap();
        assert!([200, 503].contains(&received.status), "{}", received.body);
        longest = longest.max(asked.elapsed());
        most = most.max(resident());
    }
    drop(silent);
    sqs.call("ListQueues", json!({})).await;
    println!(
        "resident: {before} kB before, {most} kB at most, {} kB after; longest receive {longest:.1?}",
        resident()
    );
    // The limit, and what the five connections to the database bring in the meantime, in all its
    // forms.
    assert!(most - before.min(most) < 200 * 1024, "{before} kB, then {most} kB");
    sqs.end().await;
}

/// Large bodies that do not come take no memory from small ones. Nor do heads that do not end, and
/// answers that are not read, hold up others, or the end of the server for long.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_hold_up_no_others() {
    let mut sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let length = 4 << 20;
    let half = head(&sqs, "POST / HTTP/1.1", &format!("{LIST}content-length: {length}\r\n"));
    let mut slow = Vec::new();
    for _ in 0..100 {
        slow.push(wrote(&sqs, half.as_bytes()).await);
        slow.push(wrote(&sqs, b"POST / HTTP/1.1\r\nhost: loc").await);
    }
    // Each of these has an answer of 500 kB, and there are many of them.
    let body = "x".repeat(500_000);
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
    let again = json!({"QueueUrl": url, "VisibilityTimeout": 0}).to_string();
    let receive = format!(
        "POST / HTTP/1.1\r\nhost: {}\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {}\r\n\r\n{again}",
        sqs.address,
        again.len()
    );
    for _ in 0..20 {
        slow.push(wrote(&sqs, receive.repeat(20).as_bytes()).await);
    }
    for _ in 0..50 {
        let list = timeout(PATIENCE, sqs.call("ListQueues", json!({})));
        assert!(list.await.unwrap()["QueueUrls"].is_array());
    }
    // Open connections make the end wait as long as the server gives them, 10 s: a plain run spares
    // that.
    slow.truncate(size(0, usize::MAX));
    sqs.tell_to_end();
    let ends = timeout(PATIENCE, sqs.end());
    ends.await.unwrap();
    drop(slow);
}

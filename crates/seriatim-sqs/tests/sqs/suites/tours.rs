//! A tour through the operations with each client.

use crate::suites::{SUITES, client, run, url};
use crate::support::Sqs;

async fn python(name: &str) {
    let Some(program) = client(name) else { return };
    let sqs = Sqs::start().await;
    let script = format!("{SUITES}/tours/tour.py");
    let out = run(&sqs, &program, &[&script, &url(&sqs)]).await;
    assert!(out.contains("all well"), "{out}");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_speaks_json() {
    python("boto3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_of_2023_speaks_query() {
    python("boto3-query").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_aws_works() {
    let Some(program) = client("aws") else { return };
    let sqs = Sqs::start().await;
    let url = url(&sqs);
    let aws = async |args: &[&str]| {
        run(&sqs, &program, &[&["--endpoint-url", &url, "sqs"], args].concat()).await
    };
    let made = aws(&["create-queue", "--queue-name", "q", "--output", "text"]).await;
    let queue = made.trim();
    aws(&["send-message", "--queue-url", queue, "--message-body", "hello"]).await;
    let body = ["--query", "Messages[0].Body", "--output", "text"];
    let received = aws(&[&["receive-message", "--queue-url", queue][..], &body].concat()).await;
    assert_eq!(received.trim(), "hello");
    sqs.end().await;
}

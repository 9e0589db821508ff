//! A tour through the operations with each client.

use crate::suites::{SUITES, client, run, url};
use crate::support::Sqs;

/// Runs a tour with a client: the arguments before the name of its script.
async fn tour(name: &str, args: &[&str], script: &str) {
    let Some(program) = client(name) else { return };
    let sqs = Sqs::start().await;
    let (script, url) = (format!("{SUITES}/tours/{script}"), url(&sqs));
    let out = run(&sqs, &program, &[args, &[&script, &url]].concat()).await;
    assert!(out.contains("all well"), "{out}");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_speaks_json() {
    tour("boto3", &[], "tour.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_of_2023_speaks_query() {
    tour("boto3-query", &[], "tour.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_speaks_json() {
    tour("node", &[], "tour.cjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_speaks_query() {
    tour("go", &["run"], "tour.go").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn php_speaks_query() {
    tour("php", &[], "tour.php").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ruby_speaks_query() {
    tour("ruby", &[], "tour.rb").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_aws_works() {
    command_line("aws").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_2023_works() {
    command_line("aws-debian").await;
}

async fn command_line(name: &str) {
    let Some(program) = client(name) else { return };
    let sqs = Sqs::start().await;
    let url = url(&sqs);
    let aws = async |args: &[&str]| {
        run(&sqs, &program, &[&["--endpoint-url", &url, "sqs"], args].concat()).await
    };
    let made = aws(&["create-queue", "--queue-name", "q", "--output", "text"]).await;
    let queue = made.lines().next().unwrap();
    aws(&["send-message", "--queue-url", queue, "--message-body", "hello"]).await;
    let body = ["--query", "Messages[0].Body", "--output", "text"];
    let received = aws(&[&["receive-message", "--queue-url", queue][..], &body].concat()).await;
    assert_eq!(received.lines().next().unwrap(), "hello");
    sqs.end().await;
}

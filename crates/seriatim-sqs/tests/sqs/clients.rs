//! Real clients. `.ci/run` installs them below `target/python`; a test whose client is not
//! there says so and passes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::support::Sqs;

/// How long a client has for its work.
const LIMIT: Duration = Duration::from_mins(3);

/// The program of a client, unless it is missing.
fn client(name: &str, program: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    let path = root.join(name).join("bin").join(program);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: {} is not there, so the client {name} was not tried", path.display());
    assert!(std::env::var_os("SERIATIM_NEEDS_SQS_CLIENTS").is_none(), "{name} is needed here");
    None
}

async fn run(sqs: &Sqs, program: &Path, args: &[&str]) -> String {
    let command = Command::new(program)
        .args(args)
        .env("AWS_ENDPOINT_URL_SQS", format!("http://{}", sqs.address))
        .env("AWS_ACCESS_KEY_ID", "x")
        .env("AWS_SECRET_ACCESS_KEY", "y")
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(LIMIT, command).await.unwrap().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}

async fn python(name: &str) {
    let Some(program) = client(name, "python") else { return };
    let sqs = Sqs::start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/tour.py");
    let out = run(&sqs, &program, &[script, &format!("http://{}", sqs.address)]).await;
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
    let Some(program) = client("boto3", "aws") else { return };
    let sqs = Sqs::start().await;
    let url = format!("http://{}", sqs.address);
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

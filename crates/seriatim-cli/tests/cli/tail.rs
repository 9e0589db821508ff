//! `seriatim tail`.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::OutOfAttempts;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::support::{Cli, DONE, PATIENCE};

#[tokio::test]
async fn tail_follows_what_ends() {
    let cli = Cli::new().await;
    let mut tail = cli.command(&["tail", "orders", "--json"]);
    let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    // It follows what ends after its own begin, so jobs end until it tells of one.
    let seen = async {
        loop {
            cli.enqueue("ann").await;
            cli.fail(OutOfAttempts::Continue).await;
            while let Ok(line) = timeout(Duration::from_secs(2), lines.next_line()).await {
                let event: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
                // A job that is seen to run has not ended yet.
                if event["event"] != "began" {
                    return event;
                }
            }
        }
    };
    let seen = timeout(PATIENCE, seen).await.unwrap();
    assert_eq!((&seen["event"], &seen["group"]), (&json!("failed"), &json!("ann")));
    assert_eq!(seen["error"]["message"], "the bank is closed\n\u{1b}[31m");
    tail.kill().await.unwrap();
    cli.remove().await;
}

#[tokio::test]
async fn tail_follows_how_far_a_job_is() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    let received = cli.json(&["receive", "orders", "--visibility", "10m"]).await;
    let receipt = received[0]["receipt"].as_str().unwrap();
    let mut tail = cli.command(&["tail", "orders"]);
    let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = async || timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let began = next().await;
    assert!(began.contains("began"), "{began}");
    for far in ["40", "70"] {
        cli.ends(DONE, &["progress", receipt, far, "on its way"]).await;
        let told = next().await;
        let words = format!(": {far} %, on its way");
        assert!(told.contains("  progress ") && told.ends_with(&words), "{told}");
    }
    cli.ends(DONE, &["ack", receipt]).await;
    let ended = next().await;
    assert!(ended.contains("succeeded"), "{ended}");
    tail.kill().await.unwrap();
    cli.remove().await;
}

#[tokio::test]
async fn tail_of_a_queue_that_nobody_names_says_so() {
    let cli = Cli::new().await;
    for form in [&[][..], &["--json"]] {
        let mut tail = cli.command(&[&["tail", "ordres"], form].concat());
        let mut tail = tail.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(tail.stderr.take().unwrap()).lines();
        let said = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert!(said.contains("is it mistyped?"), "{said}");
        assert_eq!(serde_json::from_str::<Value>(&said).is_ok(), !form.is_empty(), "{said}");
        tail.kill().await.unwrap();
    }
    cli.remove().await;
}

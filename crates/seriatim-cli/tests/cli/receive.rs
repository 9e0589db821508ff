//! Jobs by hand: enqueue, receive, ack.

use serde_json::json;
use seriatim::{JobStatus, OutOfAttempts};

use crate::support::{Cli, DONE, NOTHING, REFUSED, USAGE};

#[tokio::test]
async fn a_script_enqueues_receives_and_acks() {
    let cli = Cli::new().await;
    let file = std::env::temp_dir().join(format!("seriatim-cli-{}.json", std::process::id()));
    std::fs::write(&file, r#"{"from": "file"}"#).unwrap();
    let argument = format!("@{}", file.display());
    let enqueue = ["enqueue", "orders", "--group", "ann", "--data", &argument];
    let preview = cli.ends(DONE, &[&enqueue[..], &["--dry-run"]].concat()).await.out;
    assert!(preview.contains(": 1 job is enqueued"), "{preview}");
    cli.ends(NOTHING, &["receive", "orders"]).await;
    let first = cli.json(&enqueue).await[0]["job"].clone();
    std::fs::remove_file(&file).unwrap();
    let enqueue = ["enqueue", "orders", "--dedup-id", "x", "--data", "-7"];
    assert_eq!(cli.json(&enqueue).await[0]["duplicate"], false);
    assert_eq!(cli.json(&enqueue).await[0]["duplicate"], true);
    let duplicate = cli.json(&[&enqueue[..], &["--dry-run"]].concat()).await;
    assert!(duplicate[0]["job"].is_i64(), "it is there: {duplicate:?}");
    let bad = cli.ends(USAGE, &["enqueue", "orders", "--data", "{secret}"]).await;
    assert!(!bad.err.contains("secret}"), "{}", bad.err);

    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    assert_eq!((&received[0]["id"], &received[0]["data"]["from"]), (&first, &json!("file")));
    let receipt = received[0]["receipt"].as_str().unwrap();
    cli.ends(DONE, &["extend", receipt, "5m"]).await;
    cli.ends(DONE, &["nack", receipt, "--delay", "0s", "--error", "the bank is closed"]).await;
    let stale = cli.ends(REFUSED, &["ack", receipt]).await.err;
    assert!(stale.contains("stale"), "{stale}");
    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    let receipt = received[0]["receipt"].as_str().unwrap();
    let snoozed = cli.ends(DONE, &["snooze", receipt, "0s"]).await;
    assert!(snoozed.out.contains("is snoozed, due"), "{}", snoozed.out);
    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    let receipt = received[0]["receipt"].as_str().unwrap();
    // Its partner takes no more: its group rests, and then its queue.
    let rest = ["rest", receipt, "1h", "--reason", "429 from Stripe"];
    let preview = cli.ends(DONE, &[&rest[..], &["--dry-run"]].concat()).await.out;
    assert!(preview.contains("rests until"), "{preview}");
    let rests = cli.json(&rest).await;
    assert_eq!((&rests[0]["rests"], &rests[0]["counts"]), (&json!("group"), &json!(true)));
    let shorter = cli.ends(DONE, &["rest", receipt, "1m"]).await.out;
    assert!(shorter.contains("or longer: that stays as it is"), "{shorter}");
    cli.ends(DONE, &[&rest[..], &["--queue"]].concat()).await;
    let by = format!("paused by job {first} for ");
    let queues = cli.ends(DONE, &["queues"]).await.out;
    assert!(queues.contains(&by) && queues.contains(": 429 from Stripe"), "{queues}");
    let empty = cli.ends(NOTHING, &["receive", "orders"]).await.err;
    assert!(empty.contains(&by), "{empty}");
    cli.ends(DONE, &["resume", "orders"]).await;
    cli.ends(DONE, &["nack", receipt, "--delay", "0s"]).await;
    let groups = cli.ends(DONE, &["groups", "orders"]).await.out;
    assert!(groups.contains(&format!("by job {first}, for ")), "{groups}");
    let lane = cli.ends(DONE, &["lane", "orders", "ann"]).await.out;
    assert!(lane.contains(&format!("job {first} asked for that (429 from Stripe)")), "{lane}");
    assert!(lane.contains("It goes on by itself; run `seriatim resume orders ann`"), "{lane}");
    cli.ends(DONE, &["resume", "orders", "ann"]).await;
    cli.ends(REFUSED, &rest).await;
    cli.ends(USAGE, &["rest", receipt]).await;
    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    let receipt = received[0]["receipt"].as_str().unwrap();
    let failed = cli.ends(DONE, &["snooze", receipt, "0s", "--max", "1"]).await;
    assert!(failed.out.contains("was snoozed 1 of 1 times, and is given back"), "{}", failed.out);
    cli.ends(USAGE, &["snooze", receipt]).await;
    let first_job = first.to_string();
    let shown = cli.ends(DONE, &["job", "show", &first_job]).await.out;
    assert!(shown.contains("snoozes"), "{shown}");
    cli.ends(DONE, &["job", "run-now", &first_job]).await;
    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    let receipt = received[0]["receipt"].as_str().unwrap();
    cli.ends(USAGE, &["progress", receipt, "101"]).await;
    let dry = cli.ends(DONE, &["progress", receipt, "30", "--dry-run"]).await;
    assert!(dry.out.contains("is at 30 %"), "{}", dry.out);
    let kept =
        cli.ends(DONE, &["progress", receipt, "40", "page 4 of 10", "--checkpoint", "[4]"]).await;
    assert!(kept.out.contains("is at 40 %, and its checkpoint is kept"), "{}", kept.out);
    let shown = cli.ends(DONE, &["job", "show", &first_job]).await.out;
    assert!(shown.contains("progress     40 %, page 4 of 10 ("), "{shown}");
    assert!(shown.contains("checkpoint   kept ") && shown.contains("s: 40 %, page 4"), "{shown}");
    assert!(!shown.contains("[4]"), "{shown}");
    let explained = cli.ends(DONE, &["explain", &first_job]).await.out;
    assert!(explained.contains("s: 40 %, page 4 of 10)"), "{explained}");
    let shown = cli.json(&["job", "show", &first_job]).await;
    assert_eq!(shown[0]["progress"]["percent"], 40);
    cli.ends(DONE, &["nack", receipt, "--delay", "0s"]).await;
    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    assert_eq!(received[0]["checkpoint"], serde_json::json!([4]));
    let receipt = received[0]["receipt"].as_str().unwrap();
    cli.ends(DONE, &["ack", receipt, "--dry-run"]).await;
    cli.ends(DONE, &["ack", receipt, "--result", "[1]"]).await;
    assert_eq!(cli.status(first.as_i64().unwrap()).await, JobStatus::Succeeded);
    assert!(cli.ends(DONE, &["receive", "orders"]).await.out.contains("-7"));
    cli.ends(USAGE, &["ack", "4711"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn a_job_that_ended_instead_of_going_back_is_told_as_ended() {
    let cli = Cli::new().await;
    let given_back = async |command: &[&str], status: &str| {
        cli.enqueue("ann").await;
        let received = cli.json(&["receive", "orders"]).await;
        let job = received[0]["id"].to_string();
        let receipt = received[0]["receipt"].as_str().unwrap();
        if status == "cancelled" {
            cli.ends(DONE, &["job", "cancel", &job]).await;
        }
        let told = cli.ends(DONE, &[&[command[0], receipt], &command[1..]].concat()).await.out;
        assert!(told.contains(&format!("has ended as {status}")), "{command:?}: {told}");
    };
    given_back(&["snooze", "1h"], "cancelled").await;
    given_back(&["nack"], "cancelled").await;
    cli.ends(DONE, &["configure", "orders", "--max-attempts", "1"]).await;
    given_back(&["snooze", "1h", "--max", "0"], "failed").await;
    given_back(&["nack"], "failed").await;
    cli.remove().await;
}

#[tokio::test]
async fn an_empty_receive_says_why() {
    let cli = Cli::new().await;
    let why = async |args: &[&str], words: &str| {
        let nothing = cli.ends(NOTHING, &[&["receive", "orders"], args].concat()).await;
        assert!(nothing.out.is_empty() && nothing.err.contains(words), "{words}: {}", nothing.err);
    };
    why(&[], "it has no job at all").await;
    cli.enqueue("ann").await;
    cli.enqueue("ann").await;
    cli.fail(OutOfAttempts::Halt).await;
    why(&[], "1 of its groups halted").await;
    why(&["--group", "ann"], "`seriatim job retry 1`").await;
    cli.ends(DONE, &["enqueue", "orders", "--delay", "1h"]).await;
    why(&[], "1 of its jobs not due yet").await;
    cli.ends(DONE, &["pause", "orders", "--reason", "the bank moves"]).await;
    for words in ["paused for ", " s (the bank moves); `seriatim resume orders` ends that"] {
        why(&[], words).await;
    }
    cli.remove().await;
}

#[tokio::test]
async fn a_unique_key_keeps_a_second_job_out_or_replaces_the_first() {
    let cli = Cli::new().await;
    let unique = ["enqueue", "exports", "--group", "g", "--unique-key", "7"];
    let export = cli.json(&unique).await[0]["job"].to_string();
    let again = cli.ends(DONE, &unique).await.out;
    assert!(again.contains(&format!("a duplicate of job {export}, nothing")), "{again}");
    let replace = ["--unique-mode", "replace", "--data", "2"];
    let again = cli.ends(DONE, &[&unique[..], &replace].concat()).await.out;
    assert!(again.contains(&format!("job {export} waits, and its data is replaced")), "{again}");
    let shown = cli.ends(DONE, &["job", "show", &export]).await.out;
    assert!(
        shown.contains("unique key   7") && shown.contains("replaced     once, last"),
        "{shown}"
    );
    assert!(cli.ends(DONE, &["explain", &export]).await.out.contains("replaced 1 time, last at"));
    cli.ends(USAGE, &["enqueue", "exports", "--unique-key", "7", "--dedup-id", "7"]).await;
    cli.remove().await;
}

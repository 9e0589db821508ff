//! Purge: what it cancels, and what it asks.

use serde_json::json;
use seriatim::JobStatus;

use crate::support::{Cli, DONE, NOTHING, REFUSED, USAGE};

#[tokio::test]
async fn one_job_is_changed_without_a_yes_but_a_queue_is_never_purged() {
    let cli = Cli::new().await;
    let job = cli.enqueue("ann").await;
    let refused = cli.ends(REFUSED, &["purge", "orders"]).await;
    assert!(refused.err.contains("1 unfinished job of queue \"orders\" is"), "{}", refused.err);
    cli.ends(DONE, &["purge", "orders", "ann"]).await;
    cli.ends(DONE, &["job", "retry", &job.to_string()]).await;
    cli.ends(DONE, &["purge", "orders", "--yes"]).await;
    assert_eq!(cli.status(job).await, JobStatus::Cancelled);
    cli.remove().await;
}

#[tokio::test]
async fn everything_of_a_queue_is_purged_after_a_yes() {
    let cli = Cli::new().await;
    let dedup = ["enqueue", "orders", "--group", "ann", "--dedup-id", "a"];
    cli.ends(DONE, &dedup).await;
    cli.enqueue("bob").await;
    cli.ends(DONE, &["receive", "orders", "--group", "bob"]).await;
    let purge = ["purge", "orders", "--everything"];
    let asked = cli.ends(REFUSED, &purge).await;
    assert!(
        asked.err.contains("2 jobs of queue \"orders\"") && asked.err.contains("1 in flight"),
        "{}",
        asked.err
    );
    cli.ends(USAGE, &["purge", "orders", "ann", "--everything"]).await;
    let purged = cli.json(&[&purge[..], &["--yes"]].concat()).await[0].clone();
    assert_eq!((&purged["jobs"], &purged["forgotten"]), (&json!(2), &json!(1)));
    assert_eq!(cli.json(&dedup).await[0]["duplicate"], false);
    cli.ends(NOTHING, &["purge", "none", "--everything", "--yes"]).await;
    cli.remove().await;
}

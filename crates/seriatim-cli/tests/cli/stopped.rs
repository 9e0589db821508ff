//! Groups that are halted, parked or paused.

use serde_json::json;
use seriatim::{JobStatus, OutOfAttempts, QueueOptions, RetryPolicy};

use crate::support::{Cli, DONE, NOTHING, REFUSED, USAGE};

#[tokio::test]
async fn a_halted_group_is_found_and_mended() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    cli.fail(OutOfAttempts::Halt).await;
    let halted = cli.json(&["groups", "orders", "--state", "halted"]).await;
    assert_eq!(halted[0]["halted_by"], first);

    // If a group is halted instead of paused, the refusal names the command that helps.
    let refused = cli.ends(REFUSED, &["resume", "orders", "ann"]).await;
    assert!(refused.err.contains(&format!("seriatim job retry {first}")), "{}", refused.err);
    // The next job is innocent.
    cli.ends(REFUSED, &["job", "skip", &second.to_string()]).await;

    let retried = cli.ends(DONE, &["job", "retry", &first.to_string()]).await;
    assert!(retried.out.contains("queued again in its old place"), "{}", retried.out);
    cli.ends(NOTHING, &["groups", "orders", "--state", "halted"]).await;
    cli.fail(OutOfAttempts::Halt).await;
    cli.ends(DONE, &["unhalt", "orders", "ann"]).await;
    cli.ends(NOTHING, &["unhalt", "orders", "ann"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn parked_jobs_are_redriven_and_discarded() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    let queue =
        QueueOptions::new("orders").retry(RetryPolicy::new(1)).out_of_attempts(OutOfAttempts::Park);
    cli.enqueue("ann").await;
    for discard in [false, true] {
        cli.fail(OutOfAttempts::Park).await;
        let pool = cli.database.pool();
        cli.client.run_maintenance(pool, queue.clone()).await.unwrap();
        let parked = cli.json(&["parked", "list", "orders"]).await;
        assert_eq!((&parked[0]["job"], &parked[0]["parked"]), (&json!(first), &json!(2)));
        cli.ends(DONE, &["parked", "list", "orders"]).await;
        let verb = if discard { "discard" } else { "redrive" };
        cli.ends(REFUSED, &["parked", verb, "orders", "ann"]).await;
        cli.ends(DONE, &["parked", verb, "orders", "ann", "--dry-run"]).await;
        assert_eq!(cli.status(second).await, JobStatus::Parked);
        cli.ends(DONE, &["parked", verb, "orders", "ann", "--yes"]).await;
        cli.ends(NOTHING, &["parked", "list", "orders"]).await;
    }
    cli.ends(NOTHING, &["park", "orders", "nobody"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn a_group_is_parked_by_hand() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    cli.enqueue("ann").await;
    // A worker has to have seen the group.
    cli.fail(OutOfAttempts::Halt).await;
    cli.ends(REFUSED, &["park", "orders", "ann"]).await;
    cli.ends(DONE, &["park", "orders", "ann", "--yes", "--dry-run"]).await;
    cli.ends(DONE, &["park", "orders", "ann", "--yes"]).await;
    let queue = QueueOptions::new("orders");
    cli.client.run_maintenance(cli.database.pool(), queue).await.unwrap();
    let parked = cli.json(&["parked", "list", "orders"]).await;
    assert_eq!((&parked[0]["job"], &parked[0]["parked"]), (&json!(first), &json!(2)));
    assert_eq!(cli.status(second).await, JobStatus::Parked);
    cli.remove().await;
}

#[tokio::test]
async fn a_halted_group_without_jobs_is_not_parked() {
    let cli = Cli::new().await;
    let job = cli.enqueue("two words").await;
    cli.fail(OutOfAttempts::Halt).await;
    let nothing = cli.ends(NOTHING, &["park", "orders", "two words"]).await;
    assert!(nothing.err.contains(&format!("`seriatim job retry {job}`")), "{}", nothing.err);
    let unhalt = "`seriatim unhalt orders 'two words'`";
    assert!(nothing.err.contains(unhalt), "{}", nothing.err);
    // Advice names commands, with the names that they take.
    let lane = cli.ends(DONE, &["lane", "orders", "two words"]).await;
    assert!(lane.out.contains(&format!("`seriatim job skip {job}`")), "{}", lane.out);
    let refused = cli.ends(NOTHING, &["resume", "orders"]).await;
    assert!(refused.err.contains("`seriatim resume orders GROUP`"), "{}", refused.err);
    cli.remove().await;
}

#[tokio::test]
async fn a_pause_has_a_reason_and_an_end() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    cli.ends(DONE, &["pause", "orders", "--reason", "the bank moves"]).await;
    let queues = cli.ends(DONE, &["queues"]).await;
    assert!(queues.out.contains("the bank moves"), "{}", queues.out);
    cli.ends(DONE, &["pause", "orders", "ann", "--dry-run"]).await;
    cli.ends(NOTHING, &["resume", "orders", "ann"]).await;
    assert_eq!(cli.json(&["pause", "orders", "ann"]).await[0]["group"], "ann");
    cli.ends(DONE, &["resume", "orders", "ann"]).await;
    cli.ends(DONE, &["resume", "orders"]).await;
    cli.ends(NOTHING, &["resume", "orders"]).await;
    let paused = cli.ends(DONE, &["pause", "orders", "--for", "10m"]).await;
    assert!(paused.out.contains("UTC or until it is resumed"), "{}", paused.out);
    let queues = cli.ends(DONE, &["queues"]).await;
    assert!(
        queues.out.contains("paused for ") && queues.out.contains(", until 20"),
        "{}",
        queues.out
    );
    cli.ends(DONE, &["resume", "orders"]).await;
    let until = cli.json(&["pause", "orders", "ann", "--for", "2h"]).await[0]["until"].clone();
    let paused = cli.client.paused_groups(cli.database.pool(), "orders").await.unwrap();
    assert_eq!(json!(paused[0].until), until);
    let groups = cli.ends(DONE, &["groups", "orders", "--state", "paused"]).await;
    assert!(groups.out.contains(", until 20"), "{}", groups.out);
    cli.ends(USAGE, &["pause", "orders", "--for", "0s"]).await;
    let operations = cli.client.operations(cli.database.pool(), None, 10).await.unwrap();
    assert_eq!(operations.len(), 7, "a dry run is not written down: {operations:?}");
    assert!(operations.iter().all(|operation| operation.actor == "ann"), "{operations:?}");
    assert_eq!(operations[6].reason.as_deref(), Some("the bank moves"));
    cli.remove().await;
}

#[tokio::test]
async fn a_pause_of_a_queue_that_nobody_names_wants_a_yes() {
    let cli = Cli::new().await;
    let refused = cli.ends(REFUSED, &["pause", "ordres"]).await;
    assert!(refused.err.contains("is it mistyped?"), "{}", refused.err);
    cli.ends(NOTHING, &["queues"]).await;
    cli.ends(DONE, &["pause", "ordres", "--yes"]).await;
    cli.ends(DONE, &["queues"]).await;
    // The pause is a setting: it names the queue.
    cli.ends(DONE, &["pause", "ordres", "--reason", "closed"]).await;
    cli.ends(DONE, &["resume", "ordres"]).await;
    cli.ends(NOTHING, &["queues"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn a_paused_group_without_jobs_shows_its_pause() {
    let cli = Cli::new().await;
    cli.ends(NOTHING, &["lane", "orders", "bob"]).await;
    cli.ends(DONE, &["pause", "orders", "bob", "--yes", "--reason", "the bank moves"]).await;
    let lane = cli.ends(DONE, &["lane", "orders", "bob"]).await.out;
    assert!(lane.contains("has no unfinished job") && lane.contains("the bank moves"), "{lane}");
    assert!(lane.contains("`seriatim resume orders bob`"), "{lane}");
    cli.remove().await;
}

#[tokio::test]
async fn a_group_that_no_worker_has_adopted_is_parked() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    cli.ends(DONE, &["park", "orders", "ann", "--yes"]).await;
    let queue = QueueOptions::new("orders");
    cli.client.run_maintenance(cli.database.pool(), queue).await.unwrap();
    assert_eq!(cli.status(first).await, JobStatus::Failed);
    assert_eq!(cli.status(second).await, JobStatus::Parked);
    let third = cli.enqueue("ann").await;
    let received = cli.json(&["receive", "orders"]).await;
    assert_eq!(received[0]["id"], third);
    cli.ends(NOTHING, &["park", "orders", "nobody", "--yes"]).await;
    cli.remove().await;
}

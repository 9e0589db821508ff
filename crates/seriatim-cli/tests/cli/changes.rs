//! Changes of jobs and settings: shown first, and only after a yes.

use serde_json::{Value, json};
use seriatim::{JobStatus, OutOfAttempts, Processor, QueueOptions, RetryPolicy};
use tokio::time::Instant;

use crate::support::{Cli, DONE, ERROR, Hangs, NOTHING, PATIENCE, REFUSED, USAGE};

#[tokio::test]
async fn several_jobs_are_changed_only_after_a_yes() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("bob").await);
    cli.fail(OutOfAttempts::Continue).await;

    let refused = cli.ends(REFUSED, &["redrive", "orders"]).await;
    assert!(refused.err.contains("2 jobs of 2 groups") && refused.err.contains("--yes"));
    let dry = cli.json(&["redrive", "orders", "--dry-run"]).await;
    assert_eq!((&dry[0]["jobs"], &dry[0]["dry_run"]), (&json!(2), &json!(true)));
    assert_eq!(cli.status(first).await, JobStatus::Failed);

    let one = cli.json(&["redrive", "orders", "--group", "ann", "--error", "bank"]).await;
    assert_eq!(one[0]["jobs"], 1);
    assert_eq!(cli.status(first).await, JobStatus::Queued);
    assert_eq!(cli.status(second).await, JobStatus::Failed);
    cli.ends(DONE, &["discard", "orders", "--group", "bob"]).await;
    assert_eq!(cli.status(second).await, JobStatus::Cancelled);
    cli.ends(NOTHING, &["redrive", "orders", "--yes"]).await;

    cli.enqueue("ann").await;
    cli.ends(REFUSED, &["purge", "orders"]).await;
    cli.ends(DONE, &["purge", "orders", "--dry-run"]).await;
    assert_eq!(cli.status(first).await, JobStatus::Queued);
    assert_eq!(cli.json(&["purge", "orders", "--yes"]).await[0]["jobs"], 2);
    assert_eq!(cli.status(first).await, JobStatus::Cancelled);
    cli.ends(NOTHING, &["purge", "orders"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn of_several_jobs_each_is_told() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("bob").await);
    let (one, two) = (first.to_string(), second.to_string());
    // The jobs that exist are changed; an error names the missing one.
    let cancelled = cli.ends(ERROR, &["job", "cancel", &one, "4711", &two, "--yes"]).await;
    assert!(cancelled.out.contains(&one) && cancelled.out.contains(&two), "{}", cancelled.out);
    assert!(cancelled.err.contains("there is no job 4711"), "{}", cancelled.err);
    assert_eq!(cli.status(second).await, JobStatus::Cancelled);
    let retried = cli.json(&["job", "retry", &one, &two, "--yes"]).await;
    assert_eq!(retried.len(), 2);
    cli.ends(REFUSED, &["job", "retry", &one]).await;
    assert_eq!(cli.json(&["job", "skip", &one]).await[0]["action"], "skip");
    cli.ends(NOTHING, &["job", "retry", "4711", "4712"]).await;
    let later = ["enqueue", "orders", "--delay", "1h"];
    let later = cli.json(&later).await[0]["job"].to_string();
    cli.ends(DONE, &["job", "run-now", &later]).await;
    let explained = cli.ends(DONE, &["explain", &later]).await;
    assert!(!explained.out.contains("is delayed"), "{}", explained.out);
    cli.remove().await;
}

/// The effect of each is shown as it is after those before it: the second may be skipped only when
/// the first, which halted the group, is.
#[tokio::test]
async fn changes_that_need_each_other_are_previewed_together() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    cli.fail(OutOfAttempts::Halt).await;
    let (one, two) = (first.to_string(), second.to_string());
    let asked = cli.ends(REFUSED, &["job", "skip", &one, &two]).await;
    assert!(asked.err.contains("--yes"), "{}", asked.err);
    assert_eq!(cli.status(second).await, JobStatus::Queued);
    assert_eq!(cli.json(&["job", "skip", &one, &two, "--dry-run"]).await.len(), 2);
    assert_eq!(cli.json(&["job", "skip", &one, &two, "--yes"]).await.len(), 2);
    assert_eq!(cli.status(second).await, JobStatus::Failed);
    // A job that is named twice is changed once.
    cli.ends(DONE, &["job", "retry", &one, &one]).await;
    cli.remove().await;
}

#[tokio::test]
async fn read_only_refuses_every_change() {
    let cli = Cli::new().await;
    let id = cli.enqueue("ann").await.to_string();
    let changes: [&[&str]; 12] = [
        &["move-task", "start", "orders"],
        &["move-task", "cancel", "1"],
        &["move-task", "run"],
        &["migrate"],
        &["pause", "orders"],
        &["resume", "orders"],
        &["job", "cancel", &id],
        &["redrive", "orders", "--dry-run"],
        &["purge", "orders", "--yes"],
        &["configure", "orders", "--delay", "5s"],
        &["enqueue", "orders"],
        &["receive", "orders"],
    ];
    for args in changes {
        let refused = cli.ends(REFUSED, &[&["--read-only"], args].concat()).await;
        assert!(refused.err.contains("--read-only"), "{}", refused.err);
    }
    cli.ends(DONE, &["--read-only", "configure", "orders"]).await;
    cli.ends(DONE, &["--read-only", "lane", "orders", "ann"]).await;
    assert_eq!(cli.status(id.parse().unwrap()).await, JobStatus::Queued);
    cli.remove().await;
}

#[tokio::test]
async fn settings_are_shown_and_changed() {
    let cli = Cli::new().await;
    let change = ["configure", "orders", "--in-flight-limit", "7", "--delay", "90s"];
    cli.ends(DONE, &[&change[..], &["--dry-run"]].concat()).await;
    assert_eq!(cli.json(&["configure", "orders"]).await[0]["in_flight_limit"], Value::Null);
    assert_eq!(cli.json(&change).await[0]["delay"], 90.0);
    let reset = ["configure", "orders", "--in-flight-limit", "default", "--dedup-scope", "group"];
    let changed = cli.json(&reset).await;
    assert_eq!(changed[0]["in_flight_limit"], Value::Null);
    assert_eq!((&changed[0]["delay"], &changed[0]["dedup_scope"]), (&json!(90.0), &json!("group")));
    let receivers = ["configure", "orders", "--out-of-attempts", "halt:1h:park", "--backoff", "5s"];
    let policy = cli.json(&receivers).await[0]["out_of_attempts"].clone();
    assert_eq!(policy, json!({"halt_for": {"deadline": 3600.0, "then": "park"}}));
    let shown = cli.ends(DONE, &["configure", "orders"]).await;
    assert!(shown.out.contains("90 s"), "{}", shown.out);
    cli.ends(USAGE, &["configure", "orders", "--in-flight-limit", "many"]).await;
    cli.ends(USAGE, &["configure", "orders", "--in-flight-limit", "0"]).await;
    let rate = ["configure", "orders", "--rate", "600/min", "--rate-burst", "5"];
    let said = cli.ends(DONE, &[&rate[..], &["--group-spacing", "200ms"]].concat()).await.out;
    assert!(
        said.contains("rate 600 a minute, 5 at once (was none), group spacing 200 ms (was none)"),
        "{said}"
    );
    let queues = cli.ends(DONE, &["queues"]).await.out;
    assert!(queues.contains("starts 600 a minute at most"), "{queues}");
    let reset = cli.ends(DONE, &["configure", "orders", "--rate", "default"]).await.out;
    assert!(
        reset.ends_with("queue \"orders\": rate none (was 600 a minute, 5 at once)\n"),
        "{reset}"
    );
    let keys = ["configure", "orders", "--limit-per-key"];
    assert_eq!(cli.json(&[&keys[..], &["2"]].concat()).await[0]["limit_per_key"], 2);
    let queues = cli.ends(DONE, &["queues"]).await.out;
    assert!(queues.contains("at most 2 groups for each limit key"), "{queues}");
    let reset = cli.json(&[&keys[..], &["default"]].concat()).await;
    assert_eq!(reset[0]["limit_per_key"], Value::Null);
    cli.ends(USAGE, &[&keys[..], &["0"]].concat()).await;
    let own = ["set-key-limit", "orders", "tenant-7"];
    let said = cli.ends(DONE, &[&own[..], &["20", "--dry-run"]].concat()).await.out;
    assert!(said.contains("tenant-7\" of queue \"orders\" has its own limit: 20 groups"), "{said}");
    let none = cli.json(&["configure", "orders"]).await[0]["key_limits"].clone();
    assert_eq!(none, json!([]));
    let said = cli.ends(DONE, &[&own[..], &["0"]].concat()).await.out;
    assert!(said.contains("is paused: no group with it starts"), "{said}");
    let paused = cli.json(&["configure", "orders"]).await[0]["key_limits"].clone();
    assert_eq!(paused, json!([{"key": "tenant-7", "limit": 0}]));
    let shown = cli.ends(DONE, &["configure", "orders"]).await.out;
    assert!(shown.contains("limit of a key    0 for \"tenant-7\""), "{shown}");
    let said = cli.ends(DONE, &[&own[..], &["default"]].concat()).await.out;
    assert!(said.contains("has the limit of its queue: none"), "{said}");
    cli.ends(USAGE, &[&own[..], &["-1"]].concat()).await;
    for wrong in ["10", "0/s", "many/s", "1000000/s"] {
        cli.ends(USAGE, &["configure", "orders", "--rate", wrong]).await;
    }
    cli.ends(USAGE, &["configure", "orders", "--rate-burst", "5"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn the_run_of_a_job_that_hangs_is_aborted() {
    let cli = Cli::new().await;
    let job = cli.enqueue("ann").await;
    let id = job.to_string();
    cli.ends(REFUSED, &["job", "abort", &id]).await;
    let running = Processor::builder(cli.database.pool().clone())
        .queue(QueueOptions::new("orders").retry(RetryPolicy::new(1)), Hangs)
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    let becomes = async |status| {
        let deadline = Instant::now() + PATIENCE;
        while cli.status(job).await != status {
            assert!(Instant::now() < deadline, "the job does not become {status}");
            tokio::task::yield_now().await;
        }
    };
    becomes(JobStatus::Started).await;
    let dry = cli.ends(DONE, &["job", "abort", &id, "--dry-run"]).await;
    assert!(dry.out.contains("nothing is changed"), "{}", dry.out);
    assert_eq!(cli.status(job).await, JobStatus::Started);
    cli.ends(DONE, &["job", "abort", &id]).await;
    becomes(JobStatus::Failed).await;
    running.shutdown(PATIENCE).await;
    cli.remove().await;
}

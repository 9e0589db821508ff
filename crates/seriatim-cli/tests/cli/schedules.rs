//! Schedules, from the command line.

use crate::support::{Cli, DONE, ERROR, NOTHING, REFUSED, USAGE};

/// The arguments of `seriatim schedule set nightly`, and others behind them.
fn set<'a>(others: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["schedule", "set", "nightly", "--queue", "reports"];
    args.extend(others);
    args
}

#[tokio::test]
async fn a_schedule_is_set_listed_paused_run_and_removed() {
    let cli = Cli::new().await;
    cli.ends(NOTHING, &["schedule", "list"]).await;
    let nightly = set(&["--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--group", "customer-7"]);
    // No job names the queue yet: it asks.
    let asked = cli.ends(REFUSED, &nightly).await.err;
    assert!(asked.contains("is it mistyped?"), "{asked}");
    let dry = cli.ends(DONE, &[&nightly[..], &["--dry-run"]].concat()).await.out;
    let words = "a job for group \"customer-7\" of queue \"reports\", 0 3 * * * in Europe/Berlin";
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line(&dry).contains(words), "{dry}");
    cli.ends(NOTHING, &["schedule", "list"]).await;
    let set_one = cli.json(&[&nightly[..], &["--yes", "--missed", "all:3"]].concat()).await;
    assert_eq!(
        (&set_one[0]["action"], &set_one[0]["name"]),
        (&"set_schedule".into(), &"nightly".into())
    );
    let listed = cli.json(&["schedule", "list"]).await;
    assert_eq!(listed[0]["timing"]["spec"], "0 3 * * *");
    assert_eq!(listed[0]["missed"]["at_most"], 3);
    let times = cli.json(&["schedule", "next", "nightly", "-n", "3"]).await;
    assert_eq!(times.len(), 3);
    assert_eq!(times[0]["at"], listed[0]["next_fire"]);

    cli.ends(DONE, &["schedule", "pause", "nightly", "--reason", "the source is closed"]).await;
    let list = cli.ends(DONE, &["schedule", "list"]).await.out;
    assert!(one_line(&list).contains("the source"), "{list}");
    let next = cli.ends(DONE, &["schedule", "next", "nightly"]).await;
    assert_eq!(next.out.lines().count(), 5);
    assert!(next.err.contains("`seriatim schedule resume nightly` ends that"), "{}", next.err);
    let ran = cli.json(&["schedule", "fire", "nightly"]).await;
    let job = cli.client.job(cli.database.pool(), ran[0]["job"].as_i64().unwrap()).await.unwrap();
    assert_eq!(job.unwrap().group.as_deref(), Some("customer-7"));
    cli.ends(DONE, &["schedule", "resume", "nightly"]).await;
    cli.ends(NOTHING, &["schedule", "resume", "nightly"]).await;
    cli.ends(DONE, &["schedule", "remove", "nightly"]).await;
    cli.ends(NOTHING, &["schedule", "remove", "nightly"]).await;
    let every = ["schedule", "set", "poll", "--queue", "reports", "--every", "1m"];
    cli.ends(DONE, &every).await;
    let late = "update seriatim.schedule set next_fire = now() - interval '1 min'";
    sqlx::raw_sql(late).execute(cli.database.pool()).await.unwrap();
    let doctor = one_line(&cli.ends(ERROR, &["doctor"]).await.out);
    assert!(doctor.contains("PROBLEM schedules: schedule \"poll\" has been due for"), "{doctor}");
    let log = cli.ends(DONE, &["log"]).await.out;
    assert!(log.contains("remove_schedule") && log.contains("nightly"), "{log}");
    cli.remove().await;
}

#[tokio::test]
async fn a_schedule_that_cannot_be_is_a_usage_error() {
    let cli = Cli::new().await;
    for (others, words) in [
        (&["--every", "5m", "--cron", "* * * * *", "--zone", "UTC"][..], "cannot be used with"),
        (&[], "required"),
        (&["--cron", "0 3 * * *"], "--zone"),
        (&["--cron", "0 0 3 * * *", "--zone", "UTC"], "it has 6 fields"),
        (&["--cron", "0 3 * * *", "--zone", "Mars"], "no time zone"),
        (&["--every", "500ms"], "whole seconds"),
        (&["--at", "tomorrow"], "2026-11-24"),
        (&["--every", "5m", "--missed", "some"], "all:10"),
    ] {
        let refused = cli.ends(USAGE, &[&set(others)[..], &["--yes"]].concat()).await.err;
        assert!(refused.contains(words), "{others:?}: {refused}");
    }
    let over = set(&["--at", "2026-01-01", "--yes"]);
    let over = cli.ends(DONE, &over).await.out;
    assert!(over.contains("its time is over"), "{over}");
    cli.ends(NOTHING, &["schedule", "next", "nightly"]).await;
    let read_only = cli.ends(REFUSED, &["schedule", "remove", "nightly", "--read-only"]).await.err;
    assert!(read_only.contains("--read-only"), "{read_only}");
    cli.remove().await;
}

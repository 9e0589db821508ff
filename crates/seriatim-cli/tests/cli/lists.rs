//! Lists of what exists: queues, groups, jobs, nodes, operations, metrics.

use std::time::Duration;

use serde_json::json;
use seriatim::{NewJob, OutOfAttempts, Processor, QueueOptions};
use tokio::time::Instant;

use crate::support::{Cli, DONE, ERROR, Fails, NOTHING, PATIENCE, ran};

#[tokio::test]
async fn lists_show_queues_groups_and_jobs() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    cli.enqueue("bob").await;

    let queues = cli.ends(DONE, &["queues"]).await;
    assert!(queues.out.contains("orders") && queues.out.contains("3 queued"), "{}", queues.out);
    let queues = cli.json(&["queues"]).await;
    assert_eq!(queues[0]["jobs"]["queued"]["count"], 3);

    let groups = cli.ends(DONE, &["groups", "orders", "--limit", "1"]).await;
    assert!(
        groups.out.contains("ann") && groups.out.contains("more: --after ann"),
        "{}",
        groups.out
    );
    let groups = cli.json(&["groups", "orders", "--sort", "depth"]).await;
    assert_eq!((&groups[0]["group"], &groups[0]["depth"]["count"]), (&json!("ann"), &json!(2)));
    cli.ends(NOTHING, &["groups", "orders", "--state", "halted"]).await;

    let lane = cli.ends(DONE, &["lane", "orders", "ann"]).await;
    assert!(lane.out.contains(&format!("Job {first} of group \"ann\"")), "{}", lane.out);
    let lane = cli.json(&["lane", "orders", "ann"]).await;
    assert_eq!(lane[0]["jobs"][1]["id"], second);
    cli.ends(NOTHING, &["lane", "orders", "nobody"]).await;

    let id = second.to_string();
    let explained = cli.ends(DONE, &["explain", &id]).await;
    assert!(explained.out.contains(&format!("waits behind job {first}")), "{}", explained.out);
    assert_eq!(cli.json(&["explain", &id]).await[0]["reason"]["reason"], "behind");
    cli.ends(NOTHING, &["explain", "4711"]).await;

    let jobs = cli.json(&["job", "list", "orders", "--group", "ann", "--limit", "1"]).await;
    assert_eq!(jobs[0]["id"], second);
    let before = ["job", "list", "orders", "--group", "ann", "--before", &id];
    assert_eq!(cli.json(&before).await[0]["id"], first);
    cli.ends(DONE, &["job", "list", "orders", "--status", "queued", "--since", "1h"]).await;
    cli.ends(NOTHING, &["job", "list", "orders", "--name", "refund"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn data_is_shown_only_if_asked_for() {
    let cli = Cli::new().await;
    let id = cli.enqueue("ann").await.to_string();
    for args in [&["job", "show", &id][..], &["lane", "orders", "ann"], &["job", "list", "orders"]]
    {
        for json in [&["--json"][..], &[]] {
            let shown = cli.ends(DONE, &[json, args].concat()).await;
            assert!(!shown.out.contains("4711"), "{args:?}: {}", shown.out);
        }
    }
    assert!(cli.ends(DONE, &["job", "show", &id, "--data"]).await.out.contains("4711"));
    let job = cli.json(&["job", "show", &id, "--data"]).await;
    assert_eq!(job[0]["data"], json!({"secret": 4711}));
    cli.remove().await;
}

#[tokio::test]
async fn a_lane_that_is_cut_says_how_to_see_more() {
    let cli = Cli::new().await;
    for _ in 0..3 {
        cli.enqueue("ann").await;
    }
    let cut = cli.ends(DONE, &["lane", "orders", "ann", "--jobs", "2"]).await;
    assert!(cut.out.ends_with("more: --jobs 1000\n"), "{}", cut.out);
    let cut = cli.json(&["lane", "orders", "ann", "--jobs", "2"]).await;
    assert_eq!((&cut[0]["more"], cut[0]["jobs"].as_array().unwrap().len()), (&json!(true), 2));
    let whole = cli.ends(DONE, &["lane", "orders", "ann", "--jobs", "3"]).await;
    assert!(!whole.out.contains("more"), "{}", whole.out);
    cli.remove().await;
}

#[tokio::test]
async fn what_operators_did_is_listed() {
    let cli = Cli::new().await;
    cli.ends(NOTHING, &["log"]).await;
    cli.enqueue("ann").await;
    let pause = ["pause", "orders", "--actor", "bob", "--reason", "the bank moves"];
    cli.ends(DONE, &pause).await;
    cli.ends(DONE, &["resume", "orders"]).await;
    let log = cli.json(&["log"]).await;
    assert_eq!((&log[0]["actor"], &log[1]["actor"]), (&json!("ann"), &json!("bob")));
    let log = cli.ends(DONE, &["log", "--limit", "1"]).await;
    assert!(log.out.contains("more: --before"), "{}", log.out);
    cli.remove().await;
}

#[tokio::test]
async fn a_job_shows_who_did_what_with_it() {
    let cli = Cli::new().await;
    let job = cli.enqueue("ann").await.to_string();
    cli.ends(DONE, &["job", "skip", &job, "--reason", "refunded by hand"]).await;
    cli.ends(DONE, &["job", "retry", &job, "--actor", "bob"]).await;
    let shown = cli.ends(DONE, &["job", "show", &job]).await.out;
    assert!(shown.contains("skip    refunded by hand") && shown.contains("bob"), "{shown}");
    let shown = cli.json(&["job", "show", &job]).await;
    let actors = [0, 1].map(|n| &shown[0]["operations"][n]["actor"]);
    assert_eq!(actors, [&json!("ann"), &json!("bob")]);
    cli.remove().await;
}

#[tokio::test]
async fn attempts_before_a_retry_are_told_from_those_that_count() {
    let cli = Cli::new().await;
    let enqueue = ["enqueue", "orders", "--group", "ann", "--max-attempts", "1"];
    let job = cli.json(&enqueue).await[0]["job"].to_string();
    cli.fail(OutOfAttempts::Continue).await;
    cli.ends(DONE, &["job", "retry", &job]).await;
    cli.ends(DONE, &["receive", "orders"]).await;
    for args in [&["job", "show", &job][..], &["job", "list", "orders"], &["lane", "orders", "ann"]]
    {
        let shown = cli.ends(DONE, args).await.out;
        assert!(shown.contains("2 (1 of 1)"), "{args:?}: {shown}");
    }
    assert!(cli.ends(DONE, &["groups", "orders"]).await.out.contains("2 (1 of 1)"));
    assert!(cli.ends(DONE, &["explain", &job]).await.out.contains("attempt 2, 1 of 1 that count"));
    cli.remove().await;
}

/// The commands of an incident need no right to what jobs carry.
#[tokio::test]
async fn an_observer_sees_why_a_lane_stands() {
    let cli = Cli::new().await;
    if !cli.database.server().is_private() {
        println!("skipped: the server may not let a new role in");
        return;
    }
    // Nobody serves it: a job that had been due for 10 s would be a problem.
    let job = NewJob::new("orders", &json!(1)).group("g").delay(Duration::from_hours(1));
    let id = cli.client.enqueue(cli.database.pool(), job).await.unwrap().id().to_string();
    let pool = cli.database.pool();
    let name = cli.database.name().to_owned();
    let roles = include_str!("../../../../docs/roles.sql");
    let roles = ["producer", "worker", "observer", "operator"]
        .iter()
        .fold(roles.to_owned(), |sql, role| {
            sql.replace(&format!("seriatim_{role}"), &format!("{name}_{role}"))
        });
    sqlx::raw_sql(sqlx::AssertSqlSafe(roles)).execute(pool).await.unwrap();
    let observer = format!("{name}_observer");
    let login = format!("alter role {observer} login");
    sqlx::raw_sql(sqlx::AssertSqlSafe(login)).execute(pool).await.unwrap();
    cli.client.collect_metrics(pool, Duration::from_secs(15)).await.unwrap();
    let url = cli.database.url().replacen("postgres@", &format!("{observer}@"), 1);
    for args in [
        &["queues"][..],
        &["groups", "orders"],
        &["lane", "orders", "g"],
        &["explain", &id],
        &["job", "show", &id],
        &["job", "list", "orders"],
        &["metrics"],
        &["nodes"],
        &["log"],
    ] {
        let mut command = cli.command(args);
        let ran = ran(command.env("DATABASE_URL", &url).output().await.unwrap());
        // There are neither processors nor operations.
        let code = if args == ["log"] || args == ["nodes"] { NOTHING } else { DONE };
        assert_eq!(ran.code, code, "{args:?}: {}{}", ran.out, ran.err);
        assert!(!ran.err.contains("permission denied"), "{args:?}: {}", ran.err);
    }
    // An open transaction of another role may be hidden from it: no such check is called fine.
    let asks = async || {
        let mut command = cli.command(&["doctor", "--json"]);
        ran(command.env("DATABASE_URL", &url).output().await.unwrap())
    };
    let blind = asks().await;
    assert_eq!(blind.code, ERROR, "{}", blind.err);
    assert!(blind.err.contains("3 checks could not be made"), "{}", blind.err);
    let grant = format!("grant pg_read_all_stats to {observer};");
    for check in ["long transactions", "blocked lanes", "vacuum horizon"] {
        let findings = blind.json();
        let found = findings.iter().find(|finding| finding["check"] == check).unwrap();
        assert_eq!((&found["level"], &found["made"]), (&json!("note"), &json!(false)), "{found}");
        assert!(found["sentence"].as_str().unwrap().contains("cannot see other sessions"));
        assert_eq!(found["mend"], grant);
    }
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(pool).await.unwrap();
    let sees = asks().await;
    assert_eq!(sees.code, DONE, "{}{}", sees.out, sees.err);
    let mut command = cli.command(&["job", "show", &id, "--data"]);
    let refused = ran(command.env("DATABASE_URL", &url).output().await.unwrap());
    assert!(refused.err.contains("permission denied"), "{}", refused.err);
    for role in ["producer", "worker", "observer", "operator"] {
        let drop = format!("drop owned by {name}_{role}; drop role {name}_{role}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(pool).await.unwrap();
    }
}

#[tokio::test]
async fn metrics_are_counted_and_printed() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    let queued = "seriatim_queue_jobs{queue=\"orders\",state=\"queued\"} 1";
    let unseen = cli.ends(DONE, &["metrics", "--read-only"]).await;
    assert!(!unseen.out.contains(queued), "{}", unseen.out);
    let counted = cli.ends(DONE, &["metrics"]).await;
    assert!(counted.out.contains(queued), "{}", counted.out);
    assert_eq!(cli.json(&["metrics"]).await[0]["queues"]["orders"]["jobs"]["queued"], 1);
    cli.remove().await;
}

#[tokio::test]
async fn nodes_are_listed_and_released() {
    let cli = Cli::new().await;
    cli.ends(NOTHING, &["nodes"]).await;
    let running = Processor::builder(cli.database.pool().clone())
        .node("left-one")
        .queue(QueueOptions::new("orders"), Fails)
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let nodes = loop {
        let nodes = cli.run(&["nodes", "--json"]).await;
        if nodes.code == DONE {
            break nodes.json();
        }
        assert!(Instant::now() < deadline, "{}", nodes.err);
    };
    assert_eq!((&nodes[0]["node"], &nodes[0]["queues"]), (&json!("left-one"), &json!(["orders"])));
    assert!(cli.ends(DONE, &["nodes", "list"]).await.out.contains("alive"));
    cli.ends(NOTHING, &["nodes", "release", "left-one"]).await;
    running.shutdown(PATIENCE).await;
    cli.remove().await;
}

#[tokio::test]
async fn lists_of_groups_say_what_they_looked_at() {
    let cli = Cli::new().await;
    let many = "
        insert into seriatim.job (queue, group_id, data, flagged)
          select 'orders', 'a' || i, 'null', true from generate_series(1, 1100) i;
        insert into seriatim.job (queue, group_id, data) select 'orders', 'a7', 'null' from generate_series(1, 9)";
    sqlx::raw_sql(many).execute(cli.database.pool()).await.unwrap();
    let deep = cli.ends(DONE, &["groups", "orders", "--sort", "depth", "--limit", "1"]).await.out;
    assert!(deep.contains("a7") && deep.contains("10"), "{deep}");
    assert!(deep.contains("looked at were the first 1,000 groups of each state"), "{deep}");
    let found = cli.ends(DONE, &["groups", "orders", "--sort", "wait", "--find", "a110"]).await.out;
    assert!(found.contains("a1100") && !found.contains("a7"), "{found}");
    cli.remove().await;
}

//! Commands on several servers: on each in turn, on the one of a job, on the one that is named.

use serde_json::{Value, json};
use seriatim::shards::ShardId;
use seriatim::{Client, JobStatus, NewJob};

use crate::support::{Cli, DONE, ERROR, NOTHING, REFUSED, Ran, Served, USAGE, get, ran};

/// Two databases that are shards 0 and 1.
struct Two([Cli; 2]);

impl Two {
    async fn new() -> Self {
        let two = Self([Cli::new().await, Cli::new().await]);
        let migrated = two.run(&["migrate"]).await;
        assert_eq!(migrated.code, DONE, "{}", migrated.err);
        two
    }

    fn servers(&self) -> String {
        let [first, second] = &self.0;
        format!("0={} 1={}", first.database.url(), second.database.url())
    }

    async fn run(&self, args: &[&str]) -> Ran {
        self.run_on(&self.servers(), args).await
    }

    async fn run_on(&self, servers: &str, args: &[&str]) -> Ran {
        let mut command = self.0[0].command(args);
        ran(command.env("SERIATIM_SERVERS", servers).output().await.unwrap())
    }
}

#[tokio::test]
async fn a_command_works_on_each_server_and_names_it() {
    let two = Two::new().await;
    let [first, second] = &two.0;
    first.enqueue("a").await;
    second.enqueue("b").await;
    second.enqueue("c").await;
    let lines = two.run(&["queues", "--json"]).await.json();
    let counted: Vec<_> = lines.iter().map(|line| (&line["shard"], &line["due"])).collect();
    assert_eq!(counted.len(), 2, "{lines:?}");
    assert_eq!([counted[0].0, counted[1].0], [&json!(0), &json!(1)], "{lines:?}");
    let text = two.run(&["queues"]).await.out;
    let (of_first, of_second) = text.split_once("shard 1\n").unwrap();
    assert!(of_first.starts_with("shard 0\n"), "{text}");
    assert!(of_first.contains("orders") && of_second.contains("orders"), "{text}");
    let only = two.run(&["queues", "--json", "--shard", "1"]).await.json();
    assert_eq!(only[1..], [] as [Value; 0]);
    assert_eq!(only[0]["shard"], 1);

    // A group is on one of them.
    let lane = two.run(&["lane", "orders", "b", "--json"]).await;
    assert_eq!((lane.code, lane.json().len()), (DONE, 1), "{}{}", lane.out, lane.err);
    assert_eq!(lane.json()[0]["shard"], 1);
    assert!(lane.err.contains("\"shard\":0"), "{}", lane.err);
    assert_eq!(two.run(&["lane", "orders", "none"]).await.code, NOTHING);

    // A queue is paused on both.
    assert_eq!(two.run(&["pause", "orders", "--yes"]).await.code, DONE);
    for cli in &two.0 {
        let paused = Client::default().paused_queue(cli.database.pool(), "orders").await.unwrap();
        assert!(paused.is_some());
    }
}

#[tokio::test]
async fn a_job_is_found_by_its_id() {
    let two = Two::new().await;
    let jobs = [two.0[0].enqueue("a").await, two.0[1].enqueue("b").await];
    assert_eq!(ShardId::of_job(jobs[1]), Some(ShardId::new(1).unwrap()));
    let [of_first, of_second] = jobs.map(|job| job.to_string());
    let shown = two.run(&["job", "show", &of_second, "--json"]).await.json();
    assert_eq!((shown.len(), &shown[0]["shard"]), (1, &json!(1)));
    let explained = two.run(&["explain", &of_first]).await;
    assert!(explained.out.starts_with(&format!("Job {of_first} ")), "{}", explained.out);

    // Jobs of both servers in one command.
    let cancelled = two.run(&["job", "cancel", &of_second, &of_first, "--yes"]).await;
    assert_eq!(cancelled.code, DONE, "{}", cancelled.err);
    for (cli, job) in two.0.iter().zip(jobs) {
        assert_eq!(cli.status(job).await, JobStatus::Cancelled);
    }
    let nowhere = two.run(&["job", "show", &(5_i64 << 44).to_string()]).await;
    assert_eq!(nowhere.code, NOTHING);
    assert!(nowhere.err.contains("no server has given a job this id"), "{}", nowhere.err);
}

#[tokio::test]
async fn a_server_that_is_away_is_named_and_the_others_answer() {
    let two = Two::new().await;
    two.0[1].enqueue("b").await;
    let away = "0=postgres://nobody@127.0.0.1:1/none";
    let servers = format!("{away} 1={}", two.0[1].database.url());
    let queues = two.run_on(&servers, &["queues", "--json"]).await;
    assert_eq!(queues.code, ERROR);
    assert_eq!(queues.json()[0]["shard"], 1);
    let error: Value = serde_json::from_str(queues.err.lines().next().unwrap()).unwrap();
    assert_eq!((&error["shard"], &error["code"]), (&json!(0), &json!(1)));
}

#[tokio::test]
async fn servers_that_are_mixed_up_are_refused() {
    let two = Two::new().await;
    let [first, second] = [&two.0[0], &two.0[1]].map(|cli| cli.database.url());
    // Shard 1 keeps its number, and shard 0 has given ids.
    Client::default().enqueue(two.0[0].database.pool(), NewJob::new("q", &1)).await.unwrap();
    let migrated = two.run_on(&format!("1={first} 0={second}"), &["migrate"]).await;
    assert_eq!(migrated.code, REFUSED);
    assert!(migrated.err.contains("is shard 0, not 1"), "{}", migrated.err);
    assert!(migrated.err.contains("is shard 1, not 0"), "{}", migrated.err);

    for (servers, args, words) in [
        (format!("0={first} 0={second}"), vec!["queues"], "given twice"),
        (format!("0={first}"), vec!["queues", "--shard", "1"], "no server is shard 1"),
        (two.servers(), vec!["tail", "orders"], "--shard N"),
        (two.servers(), vec!["enqueue", "orders", "--data", "1"], "--shard N"),
        (String::from("512=postgres://h/d"), vec!["queues"], "0 to 511"),
        (String::from("one"), vec!["queues"], "write a server as 1=postgres://"),
    ] {
        let refused = two.run_on(&servers, &args).await;
        assert_eq!(refused.code, USAGE, "{servers} {args:?}: {}{}", refused.out, refused.err);
        assert!(refused.err.contains(words), "{}", refused.err);
    }
    let one = two.run(&["enqueue", "orders", "--data", "1", "--shard", "1", "--json"]).await;
    assert_eq!(one.code, DONE, "{}", one.err);
    assert_eq!(one.json()[0]["shard"], 1);
}

#[tokio::test]
async fn the_page_shows_all_servers() {
    let two = Two::new().await;
    let servers = format!("{} 2=postgres://nobody@127.0.0.1:1/none", two.servers());
    let args = ["serve", "--listen", "127.0.0.1:0", "--auth", "none", "--json"];
    let mut serve = two.0[0].command(&args);
    let mut serve = Served::start(serve.env("SERIATIM_SERVERS", servers)).await;
    let page = get(serve.text("url"), "").await;
    for part in ["shard/0/", "shard/1/", "no answer"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    serve.child.kill().await.unwrap();
}

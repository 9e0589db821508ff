//! Commands on several servers: on each in turn, on the one of a job, on the one that is named.

use serde_json::{Value, json};
use seriatim::shards::ShardId;
use seriatim::{Client, JobStatus, NewJob};

use crate::support::{Cli, DONE, ERROR, NOTHING, PATIENCE, REFUSED, Ran, Served, USAGE, get, ran};

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
async fn metrics_of_all_servers_are_one_text() {
    let two = Two::new().await;
    let all = two.run(&["metrics"]).await;
    assert_eq!(all.code, DONE, "{}", all.err);
    for line in
        ["seriatim_live_processors{shard=\"0\"} 0", "seriatim_server_answers{shard=\"1\"} 1"]
    {
        assert!(all.out.lines().any(|of| of == line), "{line}: {}", all.out);
    }
    let away = format!("{} 2=postgres://nobody@127.0.0.1:1/none", two.servers());
    let some = two.run_on(&away, &["metrics"]).await;
    assert_eq!(some.code, ERROR);
    assert!(some.err.starts_with("shard 2: error: "), "{}", some.err);
    assert!(some.out.contains("seriatim_server_answers{shard=\"2\"} 0"), "{}", some.out);
    assert!(some.out.contains("seriatim_live_processors{shard=\"1\"} 0"), "{}", some.out);
    let one = two.run(&["metrics", "--shard", "1"]).await;
    assert!(one.out.contains("seriatim_live_processors 0"), "{}", one.out);
    assert_eq!(two.run(&["metrics", "--json"]).await.json()[1]["shard"], 1);
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

#[tokio::test]
async fn sqs_clients_are_served_over_all_servers() {
    let two = Two::new().await;
    let away = format!("{} 2=postgres://nobody@127.0.0.1:1/none", two.servers());
    let args = ["serve", "sqs", "--anonymous", "--listen", "127.0.0.1:0", "--json"];
    let queues = "select count(*) from seriatim.sqs_queue";
    for (servers, made_on) in [(away, 0), (two.servers(), 1)] {
        let mut serve = two.0[0].command(&args);
        let serve = Served::start(serve.env("SERIATIM_SERVERS", servers)).await;
        let endpoint = serve.text("endpoint");
        let made = get(&format!("{endpoint}?Action=CreateQueue&QueueName=q"), "").await;
        assert_eq!(made.contains("Shard 2 is away"), made_on == 0, "{made}");
        for cli in &two.0 {
            let queues: i64 =
                sqlx::query_scalar(queues).fetch_one(cli.database.pool()).await.unwrap();
            assert_eq!(queues, made_on);
        }
        let health = get(&format!("{endpoint}health"), "").await;
        assert_eq!(health.contains("shard 2 does not answer"), made_on == 0, "{health}");
        serve.interrupt().await;
    }
    let [first, second] = [&two.0[0], &two.0[1]].map(|cli| cli.database.url());
    let mixed_up = two.run_on(&format!("0={second} 1={first}"), &args).await;
    assert_eq!(mixed_up.code, REFUSED, "{}", mixed_up.err);
    assert!(mixed_up.err.contains("shard 0: "), "{}", mixed_up.err);
}

#[tokio::test]
async fn a_key_of_sqs_clients_is_on_all_servers() {
    let two = Two::new().await;
    let added = two.run(&["sqs", "key", "add", "--json"]).await.json();
    assert_eq!(added.len(), 2, "{added:?}");
    for part in ["access_key", "secret"] {
        assert_eq!(added[0][part], added[1][part]);
    }
    let key = added[0]["access_key"].as_str().unwrap();
    assert_eq!(two.run(&["sqs", "key", "disable", key]).await.code, DONE);
    let listed = two.run(&["sqs", "key", "list", "--json"]).await.json();
    let disabled =
        listed.iter().filter(|of| of["access_key"] == key && of["disabled_at"] != Value::Null);
    assert_eq!(disabled.count(), 2, "{listed:?}");
    assert_eq!(two.run(&["sqs", "key", "remove", key]).await.code, DONE);
    assert_eq!(two.run(&["sqs", "key", "list", "--json"]).await.json().len(), 0);
    let another = two.run(&["sqs", "key", "add", "--json"]).await.json();
    assert_ne!(another[0]["access_key"], key);
}

#[tokio::test]
async fn no_error_shows_a_password() {
    let cli = Cli::new().await;
    for servers in [
        "1:postgres://u:SECRET@h/d",
        "postgres://u:SECRET@h/d?sslmode=disable",
        "0=mysql://u:SECRET@h/d",
        "SECRET=postgres://h/d",
        "0=postgres://u:SECRET@h:port/d",
        "0=postgres://u:SECRET@h/d?target_session_attrs=none",
        "0=postgres://u:SECRET@h/d 0=postgres://u:SECRET@h/e",
        "600=postgres://u:SECRET@h/d",
    ] {
        for args in [&["queues"][..], &["queues", "--json"], &["queues", "--server", servers]] {
            let mut command = cli.command(args);
            let refused = ran(command.env("SERIATIM_SERVERS", servers).output().await.unwrap());
            assert_eq!(refused.code, USAGE, "{servers}: {}", refused.err);
            let told = format!("{}{}", refused.out, refused.err);
            assert!(!told.contains("SECRET"), "{servers}: {told}");
        }
    }
}

#[tokio::test]
async fn a_database_that_is_named_by_hand_goes_before_the_servers_of_the_environment() {
    let two = Two::new().await;
    let other = Cli::new().await;
    let url = other.database.url();
    for cli in [&two.0[0], &two.0[1], &other] {
        cli.enqueue("a").await;
    }
    let args = [&["purge", "orders", "--yes"][..], &["--database-url", &url]].concat();
    let purged = two.run(&args).await;
    assert_eq!(purged.code, DONE, "{}", purged.err);
    for (cli, code) in [(&two.0[0], DONE), (&two.0[1], DONE), (&other, NOTHING)] {
        cli.ends(code, &["job", "list", "orders", "--status", "queued"]).await;
    }
    let server = format!("0={url}");
    let both = ["--database-url", &url, "queues", "--server", &server];
    let refused = other.ends(USAGE, &both).await;
    assert!(refused.err.contains("give one of the two"), "{}", refused.err);
    let shard = other.ends(USAGE, &["queues", "--shard", "0"]).await;
    assert!(shard.err.contains("--server"), "{}", shard.err);
}

#[tokio::test]
async fn each_job_that_is_nowhere_is_told_and_counts() {
    let two = Two::new().await;
    let jobs = [two.0[0].enqueue("a").await, two.0[1].enqueue("b").await];
    let [of_first, of_second] = jobs.map(|job| job.to_string());
    let (missing, nowhere) = ((jobs[1] + 1).to_string(), (5_i64 << 44).to_string());
    let told = |ran: &Ran, job: &str| {
        let job: Value = job.parse().unwrap();
        let errors = ran.err.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let error = errors.into_iter().find(|error| error["job"] == job);
        assert_eq!(error.unwrap()["code"], NOTHING, "{}", ran.err);
    };
    // One is changed, and one is not there.
    let args = ["job", "cancel", &of_first, &missing, "--yes", "--json"];
    let partly = two.run(&args).await;
    assert_eq!((partly.code, partly.json().len()), (ERROR, 1), "{}", partly.err);
    told(&partly, &missing);
    let partly = two.run(&["job", "cancel", &of_second, &nowhere, "--yes", "--json"]).await;
    assert_eq!((partly.code, partly.json().len()), (ERROR, 1), "{}", partly.err);
    told(&partly, &nowhere);
    // None is.
    let none = two.run(&["job", "cancel", &nowhere, &missing, "--json"]).await;
    assert_eq!((none.code, &*none.out), (NOTHING, ""), "{}", none.err);
    told(&none, &nowhere);
    told(&none, &missing);
    let other = two.0[0].enqueue("c").await;
    let args = ["job", "cancel", &other.to_string(), &of_second, "--shard", "0", "--json"];
    let excluded = two.run(&args).await;
    assert_eq!((excluded.code, excluded.json().len()), (ERROR, 1), "{}", excluded.err);
    told(&excluded, &of_second);
    assert!(excluded.err.contains("is on shard 1, and --shard names another"), "{}", excluded.err);
    assert_eq!(two.0[0].status(other).await, JobStatus::Cancelled);
}

#[tokio::test]
async fn jobs_of_several_servers_want_a_yes_before_the_first_is_changed() {
    let two = Two::new().await;
    let jobs = [two.0[0].enqueue("a").await, two.0[1].enqueue("b").await];
    let [of_first, of_second] = jobs.map(|job| job.to_string());
    let refused = two.run(&["job", "cancel", &of_first, &of_second]).await;
    assert_eq!(refused.code, REFUSED, "{}", refused.err);
    assert!(refused.err.contains("2 jobs on 2 servers: --yes"), "{}", refused.err);
    for (cli, job) in two.0.iter().zip(jobs) {
        assert_eq!(cli.status(job).await, JobStatus::Queued);
    }
    let shown = two.run(&["job", "cancel", &of_first, &of_second, "--dry-run"]).await;
    assert_eq!((shown.code, shown.out.matches("dry run").count()), (DONE, 2), "{}", shown.err);
    // Jobs of one server are asked about there, by its name.
    let third = two.0[1].enqueue("c").await.to_string();
    let refused = two.run(&["job", "cancel", &of_second, &third]).await;
    assert_eq!(refused.code, REFUSED, "{}", refused.err);
    assert!(refused.err.starts_with("shard 1: error: this wants a yes"), "{}", refused.err);
    assert_eq!(two.run(&["job", "cancel", &of_first]).await.code, DONE);
}

#[tokio::test]
async fn a_schema_without_a_number_is_to_get_it() {
    let cli = Cli::new().await;
    let server = format!("0={}", cli.database.url());
    let migrate = async |args: &[&str]| {
        cli.run(&[&["migrate", "--server", &server, "--schema", "s"][..], args].concat()).await
    };
    let script = migrate(&["--sql"]).await;
    assert_eq!(script.code, DONE, "{}", script.err);
    assert!(script.out.lines().last().unwrap().starts_with("-- "), "{}", script.out);
    assert!(script.out.contains("does not set the number"), "{}", script.out);
    sqlx::raw_sql(sqlx::AssertSqlSafe(script.out)).execute(cli.database.pool()).await.unwrap();

    let check = migrate(&["--check"]).await;
    assert_eq!(check.code, REFUSED, "{}{}", check.out, check.err);
    assert!(check.err.contains("is to be shard 0"), "{}", check.err);
    let script = migrate(&["--sql"]).await.out;
    assert!(script.lines().all(|line| line.starts_with("-- ")), "{script}");
    assert!(script.contains("does not set the number"), "{script}");
    assert_eq!(migrate(&["--dry-run", "--json"]).await.json()[0]["state"], "to_do");
    assert_eq!(migrate(&["--json"]).await.json()[0]["state"], "migrated");
    assert_eq!(migrate(&["--json"]).await.json()[0]["state"], "up_to_date");
    assert!(!migrate(&["--sql"]).await.out.contains("number"));
    let last = "select max_value from pg_sequences \
         where schemaname = 's' and sequencename = 'job_id_seq'";
    let last: i64 = sqlx::query_scalar(last).fetch_one(cli.database.pool()).await.unwrap();
    assert_eq!(last, (1 << 44) - 1);
}

#[tokio::test]
async fn a_script_is_for_one_server() {
    let two = Two::new().await;
    let sql = ["migrate", "--sql", "--schema", "s"];
    let refused = two.run(&sql).await;
    assert_eq!((refused.code, refused.out.len()), (USAGE, 0), "{}", refused.err);
    assert!(refused.err.contains("--shard N"), "{}", refused.err);
    let script = two.run(&[&sql[..], &["--shard", "1"]].concat()).await;
    assert_eq!(script.code, DONE, "{}", script.err);
    assert!(script.out.contains("makes it shard 1"), "{}", script.out);
    sqlx::raw_sql(sqlx::AssertSqlSafe(script.out)).execute(two.0[1].database.pool()).await.unwrap();
}

#[tokio::test]
async fn every_command_refuses_a_server_with_another_number() {
    let two = Two::new().await;
    let job = two.0[1].enqueue("a").await.to_string();
    let mixed_up = format!("2={}", two.0[1].database.url());
    for args in [
        &["migrate", "--check"][..],
        &["migrate", "--dry-run"],
        &["migrate", "--sql"],
        &["migrate"],
        &["queues"],
        &["doctor"],
        &["purge", "orders", "--yes"],
        &["enqueue", "orders", "--data", "1"],
        &["serve", "--listen", "127.0.0.1:0", "--auth", "none"],
        &["serve", "sqs", "--listen", "127.0.0.1:0", "--anonymous"],
    ] {
        let run = two.run_on(&mixed_up, args);
        let refused = tokio::time::timeout(PATIENCE, run).await.unwrap();
        assert_eq!((refused.code, &*refused.out), (REFUSED, ""), "{args:?}: {}", refused.err);
        let words = "of this database is shard 1, not 2: check which server each URL leads to";
        assert!(refused.err.contains(words), "{args:?}: {}", refused.err);
    }
    assert_eq!(two.run(&["explain", &job]).await.code, DONE);
    // A schema that is not there has no number yet.
    let missing = two.run_on(&mixed_up, &["queues", "--schema", "missing"]).await;
    assert_eq!(missing.code, ERROR, "{}", missing.err);
    assert!(missing.err.contains("migrate` makes the tables"), "{}", missing.err);
}

#[tokio::test]
async fn servers_of_the_environment_may_be_blank_or_in_lines() {
    let two = Two::new().await;
    two.0[0].enqueue("a").await;
    for blank in ["", "  ", "\n\t "] {
        let one = two.run_on(blank, &["queues", "--json"]).await;
        assert_eq!(one.code, DONE, "{}", one.err);
        assert_eq!(one.json()[0].get("shard"), None);
    }
    let lines = two.servers().replace(' ', "\n   \t") + "\n";
    let each = two.run_on(&lines, &["pause", "orders", "--yes", "--json"]).await;
    assert_eq!((each.code, each.json().len()), (DONE, 2), "{}", each.err);

    let beside_a_standby = async |args: &[&str]| {
        let mut command = two.0[0].command(args);
        command.env("SERIATIM_SERVERS", two.servers()).env("SERIATIM_READ_FROM", "postgres://h/d");
        ran(command.output().await.unwrap())
    };
    let completions = beside_a_standby(&["completions", "bash"]).await;
    assert_eq!(completions.code, DONE, "{}", completions.err);
    let queues = beside_a_standby(&["queues"]).await;
    assert_eq!((queues.code, queues.err.lines().count()), (USAGE, 1), "{}", queues.err);
    assert!(queues.err.contains("SERIATIM_READ_FROM is for one server"), "{}", queues.err);
}

#[tokio::test]
async fn errors_and_notes_name_their_server() {
    let two = Two::new().await;
    two.0[1].enqueue("b").await;
    let lane = two.run(&["lane", "orders", "b"]).await;
    assert_eq!(lane.code, DONE, "{}", lane.err);
    assert!(lane.err.starts_with("shard 0: note: "), "{}", lane.err);
    let servers = format!("0=postgres://nobody@127.0.0.1:1/d 1={}", two.0[1].database.url());
    let queues = two.run_on(&servers, &["queues"]).await;
    assert!(queues.err.starts_with("shard 0: error: "), "{}", queues.err);
    assert_eq!(queues.err.lines().count(), 1, "{}", queues.err);
}

#[tokio::test]
async fn the_next_page_is_that_of_one_server() {
    let two = Two::new().await;
    let [first, second] = [two.0[0].enqueue("a").await, two.0[1].enqueue("b").await];
    for args in [["log", "--before", "9"].as_slice(), &["batch", "list", "--before", "9"]] {
        let refused = two.run(args).await;
        assert_eq!(refused.code, USAGE, "{args:?}: {}", refused.err);
        assert!(refused.err.contains("--shard N"), "{}", refused.err);
    }
    two.run(&["pause", "orders"]).await;
    assert_eq!(two.run(&["log", "--json"]).await.json().len(), 2);
    assert_eq!(two.run(&["log", "--before", "9", "--shard", "1"]).await.code, DONE);
    // An id of a job names its server.
    let before = (second + 1).to_string();
    let page = two.run(&["job", "list", "orders", "--before", &before, "--json"]).await.json();
    assert_eq!((page.len(), &page[0]["id"]), (1, &json!(second)), "not job {first}");
}

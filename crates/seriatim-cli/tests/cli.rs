//! The command line, as it is built, against a private PostgreSQL.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::{Jobs, TestDatabase};
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, JobStatus, NewJob, OutOfAttempts, Processor,
    QueueOptions, RetryPolicy, async_trait,
};
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, timeout};

/// How long an event may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

const DONE: i32 = 0;
const ERROR: i32 = 1;
const USAGE: i32 = 2;
const NOTHING: i32 = 3;
const REFUSED: i32 = 4;

/// A database, and the binary to run on it.
struct Cli {
    database: TestDatabase,
    client: Client,
}

/// What a run printed.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    /// The lines of its output as JSON.
    fn json(&self) -> Vec<Value> {
        let lines = self.out.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

impl Cli {
    async fn new() -> Self {
        Self { database: TestDatabase::create().await.unwrap(), client: Client::default() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        command.args(args).env("DATABASE_URL", self.database.url()).env_remove("COLUMNS");
        command.env("USER", "ann").stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args).output().await.unwrap())
    }

    /// Runs a command that must end with this code.
    async fn ends(&self, code: i32, args: &[&str]) -> Ran {
        let ran = self.run(args).await;
        assert_eq!(ran.code, code, "{args:?}: {}{}", ran.out, ran.err);
        ran
    }

    /// The answer of a command as JSON.
    async fn json(&self, args: &[&str]) -> Vec<Value> {
        self.ends(DONE, &[&["--json"], args].concat()).await.json()
    }

    async fn enqueue(&self, group: &str) -> i64 {
        let job = NewJob::new("orders", &json!({"secret": 4711})).group(group).name("order");
        self.client.enqueue(self.database.pool(), job).await.unwrap().id()
    }

    async fn status(&self, job: i64) -> JobStatus {
        self.client.job(self.database.pool(), job).await.unwrap().unwrap().status
    }

    /// Runs all due jobs of the queue `orders`. They fail at their first attempt.
    async fn fail(&self, then: OutOfAttempts) {
        let retry = RetryPolicy::new(1);
        let queue = QueueOptions::new("orders").retry(retry).out_of_attempts(then);
        Jobs::new(self.database.pool()).drain(queue, Fails).await.unwrap();
    }

    async fn remove(self) {
        self.database.remove().await.unwrap();
    }
}

fn ran(output: Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

struct Fails;

#[async_trait]
impl JobHandler for Fails {
    type Data = Value;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: Value) -> Result<(), JobError> {
        Err(JobError::retry("the bank is closed\n\u{1b}[31m"))
    }
}

struct Hangs;

#[async_trait]
impl JobHandler for Hangs {
    type Data = Value;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: Value) -> Result<(), JobError> {
        std::future::pending().await
    }
}

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
    assert!(lane.out.contains(&format!("job {first} of group \"ann\"")), "{}", lane.out);
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
async fn a_halted_group_is_found_and_mended() {
    let cli = Cli::new().await;
    let (first, second) = (cli.enqueue("ann").await, cli.enqueue("ann").await);
    cli.fail(OutOfAttempts::Halt).await;
    let halted = cli.json(&["groups", "orders", "--state", "halted"]).await;
    assert_eq!(halted[0]["halted_by"], first);

    // What is not paused but halted names what helps.
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
    // Those that can be are changed; an error says that not all are.
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
    assert!(paused.out.contains("resumes by itself at "), "{}", paused.out);
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
    cli.remove().await;
}

#[tokio::test]
async fn a_script_enqueues_receives_and_acks() {
    let cli = Cli::new().await;
    let file = std::env::temp_dir().join(format!("seriatim-cli-{}.json", std::process::id()));
    std::fs::write(&file, r#"{"from": "file"}"#).unwrap();
    let argument = format!("@{}", file.display());
    let enqueue = ["enqueue", "orders", "--group", "ann", "--data", &argument];
    cli.ends(DONE, &[&enqueue[..], &["--dry-run"]].concat()).await;
    cli.ends(NOTHING, &["receive", "orders"]).await;
    let first = cli.json(&enqueue).await[0]["job"].clone();
    std::fs::remove_file(&file).unwrap();
    let enqueue = ["enqueue", "orders", "--dedup-id", "x", "--data", "-7"];
    assert_eq!(cli.json(&enqueue).await[0]["duplicate"], false);
    assert_eq!(cli.json(&enqueue).await[0]["duplicate"], true);
    let bad = cli.ends(USAGE, &["enqueue", "orders", "--data", "{secret}"]).await;
    assert!(!bad.err.contains("secret}"), "{}", bad.err);

    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    assert_eq!((&received[0]["id"], &received[0]["data"]["from"]), (&first, &json!("file")));
    let receipt = received[0]["receipt"].as_str().unwrap();
    cli.ends(DONE, &["extend", receipt, "5m"]).await;
    cli.ends(DONE, &["nack", receipt, "--error", "the bank is closed"]).await;
    cli.ends(NOTHING, &["ack", receipt]).await;
    let received = cli.json(&["receive", "orders", "--group", "ann"]).await;
    let receipt = received[0]["receipt"].as_str().unwrap();
    cli.ends(DONE, &["ack", receipt, "--dry-run"]).await;
    cli.ends(DONE, &["ack", receipt, "--result", "[1]"]).await;
    assert_eq!(cli.status(first.as_i64().unwrap()).await, JobStatus::Succeeded);
    assert!(cli.ends(DONE, &["receive", "orders"]).await.out.contains("-7"));
    cli.ends(USAGE, &["ack", "4711"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn hostile_names_break_no_table() {
    let cli = Cli::new().await;
    let long = "x".repeat(400);
    let names =
        ["\u{202e}evil", "a\u{2066}b", "'\"; drop table job; --", "שלום", "👩‍👩‍👧", &long, "-x"];
    let mut ids = Vec::new();
    for name in names {
        ids.push(cli.enqueue(name).await.to_string());
    }
    cli.fail(OutOfAttempts::Halt).await;
    for name in names {
        cli.enqueue(name).await;
    }
    let plain = cli.ends(DONE, &["groups", "orders"]).await;
    assert_eq!(plain.out.lines().count(), 1 + names.len(), "{}", plain.out);
    assert!(plain.out.contains(&long), "without a terminal nothing is cut");
    assert!(plain.out.contains("closed\\n\\u{1b}[31m"), "{}", plain.out);
    assert!(plain.out.contains("a\\u{2066}b"), "{}", plain.out);

    let args: [&[&str]; 3] = [&["groups", "orders"], &["job", "list", "orders"], &["queues"]];
    for args in args {
        let narrow = ran(cli.command(args).env("COLUMNS", "60").output().await.unwrap());
        assert_eq!(narrow.code, DONE, "{}", narrow.err);
        let safe = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(narrow.out.chars().all(safe), "{:?}", narrow.out);
        for line in narrow.out.lines() {
            assert!(line.chars().count() <= 64, "{line:?}");
        }
        if args[0] == "groups" {
            assert!(narrow.out.contains('…') && !narrow.out.contains(&long), "{}", narrow.out);
        }
    }
    for (name, id) in names.iter().zip(&ids) {
        let group = ["lane", "orders", "--", name];
        let lane = cli.ends(DONE, &group).await;
        assert!(!lane.out.contains(['\u{1b}', '\u{202e}']), "{}", lane.out);
        assert!(cli.ends(DONE, &["job", "show", id]).await.out.contains("the bank is closed"));
    }
    let groups = cli.json(&["groups", "orders"]).await;
    for name in names {
        assert!(groups.iter().any(|group| group["group"] == name), "{name:?}");
    }
    cli.remove().await;
}

#[tokio::test]
async fn migrate_checks_prints_and_migrates() {
    let cli = Cli::new().await;
    cli.ends(DONE, &["migrate", "--check"]).await;
    let other = ["--schema", "bill'ing\" x"];
    let migrate = "seriatim --schema 'bill'\\''ing\" x' migrate`";
    let missing = cli.ends(REFUSED, &[&other[..], &["migrate", "--check"]].concat()).await;
    assert!(missing.err.contains(migrate), "{}", missing.err);
    let missing = cli.ends(ERROR, &[&other[..], &["queues"]].concat()).await;
    assert!(missing.err.contains(migrate), "{}", missing.err);

    // The script makes what the command would make: afterwards there is nothing to do.
    let script = cli.ends(DONE, &[&other[..], &["migrate", "--sql"]].concat()).await.out;
    cli.ends(REFUSED, &[&other[..], &["migrate", "--check"]].concat()).await;
    let script = sqlx::AssertSqlSafe(script);
    sqlx::raw_sql(script).execute(cli.database.pool()).await.unwrap();
    cli.ends(DONE, &[&other[..], &["migrate", "--check"]].concat()).await;
    let nothing = cli.ends(DONE, &[&other[..], &["migrate", "--sql"]].concat()).await;
    assert!(nothing.out.starts_with("-- "), "{}", nothing.out);

    let third = ["--schema", "third"];
    cli.ends(DONE, &[&third[..], &["migrate", "--dry-run"]].concat()).await;
    let migrated = [&third[..], &["migrate"]].concat();
    assert_eq!(cli.json(&migrated).await[0]["state"], "migrated");
    assert_eq!(cli.json(&migrated).await[0]["state"], "up_to_date");
    cli.ends(NOTHING, &[&third[..], &["queues"]].concat()).await;
    cli.remove().await;
}

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
async fn usage_is_code_2_and_a_missing_database_code_1() {
    let cli = Cli::new().await;
    for args in [&["frobnicate"][..], &["groups"], &["job", "show", "x"], &["nack", "1.2"]] {
        cli.ends(USAGE, args).await;
    }
    let none = ran(cli.command(&["queues"]).env_remove("DATABASE_URL").output().await.unwrap());
    assert_eq!(none.code, USAGE, "{}", none.err);
    let away = "postgres://nobody@127.0.0.1:1/none";
    let away = ran(cli.command(&["queues"]).env("DATABASE_URL", away).output().await.unwrap());
    assert_eq!(away.code, ERROR, "{}", away.err);
    for shell in ["bash", "zsh", "fish"] {
        assert!(cli.ends(DONE, &["completions", shell]).await.out.contains("seriatim"));
    }
    cli.remove().await;
}

#[tokio::test]
async fn doctor_finds_what_is_wrong_and_says_what_mends_it() {
    let cli = Cli::new().await;
    let fine = cli.ends(DONE, &["doctor"]).await;
    for check in ["clock", "pooler", "wake-ups", "vacuum horizon", "rights", "dead rows"] {
        assert!(fine.out.contains(&format!("ok       {check}: ")), "{check}: {}", fine.out);
    }

    // Due for long, and nobody serves the queue.
    let pool = cli.database.pool();
    let id = cli.enqueue("ann").await;
    let long_ago = "update seriatim.job set run_at = now() - interval '1 h', turn_at = now() - interval '1 h' where id = $1";
    sqlx::query(long_ago).bind(id).execute(pool).await.unwrap();
    sqlx::raw_sql("drop function seriatim.this_server()").execute(pool).await.unwrap();
    let wrong = ran(cli.command(&["doctor", "--json"]).output().await.unwrap());
    assert_eq!(wrong.code, ERROR, "{}", wrong.err);
    let findings = wrong.json();
    let of = |check: &str| {
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check}: {findings:?}"))
    };
    assert_eq!(of("schema")["level"], "problem");
    assert!(of("schema")["sentence"].as_str().unwrap().contains("this_server"), "{findings:?}");
    assert_eq!(of("processors")["level"], "problem");
    assert!(of("processors")["sentence"].as_str().unwrap().contains("no living processor"));
    assert!(of("processors")["mend"].is_string());
    cli.remove().await;
}

#[tokio::test]
async fn doctor_needs_no_schema() {
    let cli = Cli::new().await;
    let other = ["--schema", "it's other"];
    let missing = cli.ends(ERROR, &[&other[..], &["doctor"]].concat()).await;
    let migrate = r"seriatim --schema 'it'\''s other' migrate";
    assert!(missing.out.contains(&format!("-> {migrate}\n")), "{}", missing.out);
    // Advice keeps the schema, of this program and of the library.
    let check = cli.ends(REFUSED, &[&other[..], &["migrate", "--check"]].concat()).await;
    assert!(check.err.contains(migrate), "{}", check.err);
    cli.ends(DONE, &[&other[..], &["migrate"]].concat()).await;
    cli.ends(DONE, &[&other[..], &["enqueue", "orders", "--group", "ann"]].concat()).await;
    cli.ends(DONE, &[&other[..], &["pause", "orders", "ann"]].concat()).await;
    let lane = cli.ends(DONE, &[&other[..], &["lane", "orders", "ann"]].concat()).await;
    let resume = r"`seriatim --schema 'it'\''s other' resume orders ann`";
    assert!(lane.out.contains(resume), "{}", lane.out);
    cli.remove().await;
}

#[tokio::test]
async fn doctor_tells_a_role_what_it_may_not_do() {
    let cli = Cli::new().await;
    let role = format!("cli_{}", cli.database.name());
    let make = format!("create role {role} login; grant usage on schema seriatim to {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(cli.database.pool()).await.unwrap();
    let url = cli.database.url().replace("://postgres@", &format!("://{role}@"));
    if cli.database.server().is_private() {
        let asked = ran(cli.command(&["doctor"]).env("DATABASE_URL", &url).output().await.unwrap());
        assert!(asked.out.contains("may not see jobs"), "{}{}", asked.out, asked.err);
        // Without a look at the tables there is nothing to call fine.
        assert_eq!(asked.code, ERROR, "{}", asked.out);
        let refused =
            ran(cli.command(&["queues"]).env("DATABASE_URL", url).output().await.unwrap());
        assert_eq!(refused.code, REFUSED, "{}", refused.err);
        assert!(refused.err.contains("docs/roles.sql"), "{}", refused.err);
    }
    let server = cli.database.server().clone();
    cli.remove().await;
    let other = TestDatabase::create_on(&server).await.unwrap();
    let drop = format!("drop role {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(other.pool()).await.unwrap();
    other.remove().await.unwrap();
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

/// The closing scenario: the five faults of the demo, found and mended by commands alone.
#[tokio::test]
async fn the_faults_of_the_demo_are_mended_by_commands() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    demo.args(["demo", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let first = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let told = serde_json::from_str::<Value>(&first).unwrap();
    let url = told["database_url"].as_str().unwrap().to_owned();
    let shop = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        let ran = ran(command.args(args).env("DATABASE_URL", &url).output().await.unwrap());
        (ran.code, ran.out + &ran.err)
    };
    // Waits until a command ends with this code, and says this.
    let says = async |args: &[&str], code: i32, words: &str| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (ended, said) = shop(args).await;
            if ended == code && said.contains(words) {
                return said;
            }
            assert!(Instant::now() < deadline, "{args:?}: not {words:?}, but: {said}");
        }
    };
    let does = async |args: &[&str]| {
        let (ended, said) = shop(args).await;
        assert_eq!(ended, DONE, "{args:?}: {said}");
    };

    // The poisoned customer.
    let halted = ["groups", "orders", "--state", "halted"];
    says(&halted, DONE, "by job 1").await;
    does(&["job", "skip", "1", "--reason", "refunded"]).await;
    says(&halted, NOTHING, "").await;
    // The hang: the sentence has the command that ends it.
    let lane = ["lane", "orders", "customer-17"];
    let hangs = says(&lane, DONE, "`seriatim job abort ").await;
    let job = hangs.split_once("job abort ").unwrap().1.split_once('`').unwrap().0.to_owned();
    does(&["job", "abort", &job]).await;
    says(&lane, NOTHING, "has no unfinished job").await;
    // The forgotten pause.
    says(&["groups", "webhooks", "--state", "paused"], DONE, "customer-7").await;
    does(&["resume", "webhooks", "customer-7"]).await;
    // The queue that nobody serves.
    says(&["queues"], DONE, "no living processor or receiver serves it").await;
    does(&["job", "move", "--all", "--from", "weebhooks", "--to", "webhooks"]).await;
    says(&["lane", "weebhooks", "customer-20"], NOTHING, "").await;
    // The transaction that was left open.
    let lane = ["lane", "orders", "customer-11"];
    let locked = says(&lane, DONE, "pg_terminate_backend(").await;
    let pid = locked.split_once("pg_terminate_backend(").unwrap().1.split_once(')').unwrap().0;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let end = format!("select pg_terminate_backend({pid})");
    sqlx::raw_sql(sqlx::AssertSqlSafe(end)).execute(&pool).await.unwrap();
    says(&lane, NOTHING, "has no unfinished job").await;
    pool.close().await;
    let pid = demo.id().unwrap().to_string();
    Command::new("kill").args(["-INT", &pid]).status().await.unwrap();
    timeout(PATIENCE, demo.wait()).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_demo_tells_its_address_and_leaves_nothing() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    demo.args(["demo", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let told = serde_json::from_str::<Value>(&line).unwrap();
    let url = told["database_url"].as_str().unwrap().to_owned();
    let page = get(told["page"].as_str().unwrap(), "").await;
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let shop = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        ran(command.args(args).env("DATABASE_URL", &url).output().await.unwrap())
    };
    let deadline = Instant::now() + PATIENCE;
    while shop(&["groups", "orders", "--state", "halted"]).await.code != DONE {
        assert!(Instant::now() < deadline, "the poisoned customer is not halted");
    }
    assert_eq!(shop(&["groups", "webhooks", "--state", "paused"]).await.code, DONE);
    // Of the fleet, and of the demo's own workers.
    let scrape = get(&format!("{}metrics", told["page"].as_str().unwrap()), "").await;
    for metric in ["seriatim_queue_jobs{", "seriatim_slot_wait_seconds_bucket{"] {
        assert!(scrape.contains(metric), "{scrape}");
    }
    let pid = demo.id().unwrap().to_string();
    let interrupted = Command::new("kill").args(["-INT", &pid]).status().await.unwrap();
    assert!(interrupted.success());
    let ended = timeout(PATIENCE, demo.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(shop(&["queues"]).await.code, ERROR, "its server still runs");
}

#[tokio::test]
async fn sqs_is_served_on_a_private_server() {
    let mut sqs = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    sqs.args(["serve", "sqs", "--embedded", "--listen", "127.0.0.1:0", "--json"]);
    sqs.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut sqs = sqs.spawn().unwrap();
    let mut lines = BufReader::new(sqs.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let told = serde_json::from_str::<Value>(&line).unwrap();
    let endpoint = told["endpoint"].as_str().unwrap();
    let made = get(&format!("{endpoint}?Action=CreateQueue&QueueName=q"), "").await;
    assert!(made.contains("<QueueUrl>http://localhost"), "{made}");
    let pid = sqs.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    let ended = timeout(PATIENCE, sqs.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
}

#[tokio::test]
async fn keys_of_sqs_clients_are_added_listed_and_removed() {
    let cli = Cli::new().await;
    let made = cli.ends(DONE, &["sqs", "key", "add", "--json"]).await.json().remove(0);
    let key = made["access_key"].as_str().unwrap();
    assert!(made["secret"].as_str().unwrap().len() >= 32);
    let listed = cli.ends(DONE, &["sqs", "key", "list", "--json"]).await;
    assert_eq!(
        (&listed.json()[0]["access_key"], &listed.json()[0]["role"]),
        (&json!(key), &json!(null))
    );
    assert!(!listed.out.contains(made["secret"].as_str().unwrap()));
    assert!(cli.ends(DONE, &["sqs", "key", "list"]).await.out.contains("the server's role"));
    cli.ends(REFUSED, &["sqs", "key", "add", "--role", "no such role"]).await;
    cli.ends(REFUSED, &["--read-only", "sqs", "key", "remove", key]).await;
    cli.ends(DONE, &["sqs", "key", "remove", key]).await;
    cli.ends(NOTHING, &["sqs", "key", "remove", key]).await;
    let open = ["serve", "sqs", "--anonymous", "--listen", "0.0.0.0:0"];
    assert!(cli.ends(USAGE, &open).await.err.contains("loopback"));
    cli.remove().await;
}

/// Without a PgBouncer here it is skipped.
#[tokio::test]
async fn doctor_sees_a_transaction_pooler() {
    let cli = Cli::new().await;
    if !cli.database.server().is_private() {
        return cli.remove().await;
    }
    let server: PgConnectOptions = cli.database.url().parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = folder.path().join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host={} port={} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
         default_pool_size = 4\nignore_startup_parameters = extra_float_digits\n",
        server.get_host(),
        server.get_port(),
        server.get_username(),
    );
    std::fs::write(&settings, text).unwrap();
    let folder_is_seen = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), folder_is_seen).unwrap();
    let mut pooler = Command::new("pgbouncer");
    // It refuses to run as root.
    pooler.arg("-u").arg("nobody").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut pooler) = pooler.kill_on_drop(true).spawn() else {
        println!("skipped: there is no pooler here");
        return cli.remove().await;
    };
    let url =
        format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", cli.database.name());
    let through = async |args: &[&str]| {
        ran(cli.command(args).env("DATABASE_URL", &url).output().await.unwrap())
    };
    let deadline = Instant::now() + PATIENCE;
    let mut reached = false;
    while !reached && Instant::now() < deadline && pooler.try_wait().unwrap().is_none() {
        reached = through(&["migrate", "--check"]).await.code == DONE;
    }
    if !reached {
        println!("skipped: the pooler does not run here");
        return cli.remove().await;
    }
    let found = through(&["doctor", "--json"]).await.json();
    let pooler = found.iter().find(|finding| finding["check"] == "pooler").unwrap();
    assert_eq!(pooler["level"], "problem", "{found:?}");
    // All other commands work.
    for args in
        [&["enqueue", "orders", "--group", "ann"][..], &["queues"], &["lane", "orders", "ann"]]
    {
        let done = through(args).await;
        assert_eq!(done.code, DONE, "{args:?}: {}", done.err);
    }
    cli.remove().await;
}

/// The answer of a page to a GET of `/`, with these headers.
async fn get(address: &str, headers: &str) -> String {
    let (host, path) = address.trim_start_matches("http://").split_once('/').unwrap();
    let port: u16 = host.rsplit_once(':').unwrap().1.parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request =
        format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_page_is_served_to_those_who_prove_who_they_are() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    let mut serve = cli.command(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    serve.env("SERIATIM_SECRET", "secret").stdout(Stdio::piped());
    let mut serve = serve.spawn().unwrap();
    let mut lines = BufReader::new(serve.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    let told = serde_json::from_str::<Value>(&line).unwrap();
    assert_eq!(told["generated_secret"], Value::Null);
    let address = told["url"].as_str().unwrap();
    let closed = get(address, "").await;
    assert!(closed.starts_with("HTTP/1.1 401"), "{closed}");
    // operator:secret
    let page = get(address, "Authorization: Basic b3BlcmF0b3I6c2VjcmV0\r\n").await;
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("orders"), "{page}");
    serve.kill().await.unwrap();

    let open = ["serve", "--listen", "0.0.0.0:0", "--auth", "none"];
    cli.ends(USAGE, &open).await;
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
    let id = cli.enqueue("g").await.to_string();
    let pool = cli.database.pool();
    let name = cli.database.name().to_owned();
    let roles = include_str!("../../../docs/roles.sql");
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
async fn jobs_of_a_mistyped_queue_are_moved() {
    let cli = Cli::new().await;
    let mut ids = Vec::new();
    for group in ["'; --", "\u{202e}evil", "'; --"] {
        let enqueued = cli.json(&["enqueue", "ordres", "--group", group]).await;
        ids.push(enqueued[0]["job"].to_string());
    }
    cli.ends(USAGE, &["job", "move", &ids[0]]).await;
    cli.ends(USAGE, &["job", "move", "--all", "--to", "orders"]).await;
    cli.ends(USAGE, &["job", "move", &ids[0], "--all", "--from", "a", "--to", "b"]).await;
    let moving = ["job", "move", "--all", "--from", "ordres", "--to", "orders"];
    let refused = cli.ends(REFUSED, &moving).await;
    assert!(refused.err.contains("3 jobs are in queue \"orders\" now"), "{}", refused.err);
    assert!(refused.err.contains("names queue \"orders\": is it mistyped?"), "{}", refused.err);
    // One job, and nobody names the queue.
    let one = cli.ends(REFUSED, &["job", "move", &ids[0], "--to", "orders"]).await;
    assert!(one.err.contains("is it mistyped?"), "{}", one.err);
    cli.enqueue("known").await;
    let dry = cli.json(&[&moving[..], &["--dry-run"]].concat()).await;
    assert_eq!((&dry[0]["groups"], &dry[0]["jobs"][2]["job"]), (&json!(2), &json!(3)));
    // Each that cannot be moved is told.
    let some = ["job", "move", "4711", &ids[1], "--to", "orders", "--dry-run"];
    let some = cli.ends(ERROR, &some).await;
    assert!(some.out.contains("at the end of its group") && some.err.contains("job 4711 stays"));
    // The first of its group stays.
    let part = ["job", "move", &ids[2], "--to", "orders", "--reason", "mistyped"];
    let moved = cli.ends(DONE, &part).await;
    assert!(moved.out.contains("1 earlier job of the same groups stay"), "{}", moved.out);
    let shown = cli.ends(DONE, &["job", "show", &ids[2]]).await;
    assert!(shown.out.contains("moved to queue \"orders\" as job"), "{}", shown.out);
    assert!(shown.out.contains("mistyped (to queue \"orders\")"), "{}", shown.out);
    assert_eq!(cli.json(&[&moving[..], &["--yes"]].concat()).await[0]["jobs"][1]["job"], 2);
    let nothing = cli.ends(NOTHING, &moving).await;
    assert!(nothing.err.contains("no such job is queued"), "{}", nothing.err);
    cli.remove().await;
}

#[tokio::test]
async fn a_move_out_of_a_halt_or_a_pause_names_it_and_wants_a_yes() {
    let cli = Cli::new().await;
    let first = cli.enqueue("ann").await;
    cli.fail(OutOfAttempts::Halt).await;
    let behind = cli.enqueue("ann").await.to_string();
    let free = cli.enqueue("bob").await.to_string();
    cli.ends(DONE, &["enqueue", "mended"]).await;
    let halted = cli.ends(REFUSED, &["job", "move", &behind, "--to", "mended"]).await;
    let sentence = format!("group \"ann\" is halted by job {first}, and these would run");
    assert!(halted.err.contains(&sentence), "{}", halted.err);
    cli.ends(DONE, &["pause", "orders", "bob"]).await;
    let all = ["job", "move", "--all", "--from", "orders", "--to", "mended", "--dry-run"];
    let all = cli.ends(DONE, &all).await;
    assert!(all.out.contains(&sentence), "{}", all.out);
    assert!(all.out.contains("group \"bob\" is paused, and these would run"), "{}", all.out);
    cli.ends(DONE, &["resume", "orders", "bob"]).await;
    cli.ends(DONE, &["pause", "orders"]).await;
    let paused = cli.ends(REFUSED, &["job", "move", &free, "--to", "mended"]).await;
    assert!(paused.err.contains("queue \"orders\" is paused, and these"), "{}", paused.err);
    cli.ends(DONE, &["resume", "orders"]).await;
    cli.ends(DONE, &["job", "move", &free, "--to", "mended"]).await;
    cli.ends(DONE, &["job", "move", &behind, "--to", "mended", "--yes"]).await;
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
    why(&[], "paused for 0 s (the bank moves); `seriatim resume orders` ends that").await;
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
async fn attempts_are_not_shown_beyond_their_limit() {
    let cli = Cli::new().await;
    let enqueue = ["enqueue", "orders", "--group", "ann", "--max-attempts", "1"];
    let job = cli.json(&enqueue).await[0]["job"].to_string();
    cli.fail(OutOfAttempts::Continue).await;
    cli.ends(DONE, &["job", "retry", &job]).await;
    cli.ends(DONE, &["receive", "orders"]).await;
    for args in [&["job", "show", &job][..], &["job", "list", "orders"], &["lane", "orders", "ann"]]
    {
        let shown = cli.ends(DONE, args).await.out;
        assert!(shown.contains("2 of 2"), "{args:?}: {shown}");
    }
    assert!(cli.ends(DONE, &["groups", "orders"]).await.out.contains("2 of 2"));
    assert!(cli.ends(DONE, &["explain", &job]).await.out.contains("attempt 2 of 2"));
    cli.remove().await;
}

#[tokio::test]
async fn ids_are_whole_on_the_narrowest_terminal() {
    let cli = Cli::new().await;
    let highest = "alter sequence seriatim.job_id_seq restart with 9000000000000000001";
    sqlx::raw_sql(highest).execute(cli.database.pool()).await.unwrap();
    let job = cli.enqueue("a customer with a long name").await.to_string();
    cli.enqueue("a customer with a long name").await;
    cli.fail(OutOfAttempts::Halt).await;
    let receipt = {
        cli.enqueue("bob").await;
        let received = cli.json(&["receive", "orders", "--group", "bob"]).await;
        received[0]["receipt"].as_str().unwrap().to_owned()
    };
    let lists: [&[&str]; 5] = [
        &["groups", "orders", "--state", "halted"],
        &["job", "list", "orders", "--status", "failed"],
        &["lane", "orders", "a customer with a long name"],
        &["job", "show", &job],
        &["queues"],
    ];
    for args in lists {
        for columns in ["20", "40", "60", "100"] {
            let shown = ran(cli.command(args).env("COLUMNS", columns).output().await.unwrap());
            assert_eq!(shown.code, DONE, "{}", shown.err);
            if args[0] == "queues" {
                assert!(shown.out.contains("orders"), "{}", shown.out);
            } else {
                assert!(shown.out.contains("900000000000000000"), "{}", shown.out);
            }
            // A broken id would leave its rest at the begin of a line.
            for line in shown.out.lines().map(str::trim) {
                assert!(!line.starts_with("00000"), "{args:?} at {columns}: {}", shown.out);
            }
        }
    }
    cli.ends(DONE, &["nack", &receipt, "--delay", "0"]).await;
    let received = ran(cli
        .command(&["receive", "orders", "--group", "bob"])
        .env("COLUMNS", "40")
        .output()
        .await
        .unwrap());
    let whole =
        received.out.split_whitespace().any(|word| word.parse::<seriatim::Receipt>().is_ok());
    assert!(whole, "{}", received.out);
    cli.remove().await;
}

#[tokio::test]
async fn wrong_values_are_told_their_forms() {
    let cli = Cli::new().await;
    for limit in ["-1", "0", "1001"] {
        let wrong = cli.ends(USAGE, &["job", "list", "orders", "--limit", limit]).await;
        assert!(wrong.err.contains("1..=1000") && !wrong.err.contains("tip"), "{}", wrong.err);
    }
    let wrong = cli.ends(USAGE, &["job", "list", "orders", "--since", "yesterday"]).await;
    for form in ["2026-11-24T03:00:00Z", "a day in UTC as 2026-11-24", "2h"] {
        assert!(wrong.err.contains(form), "{}", wrong.err);
    }
    let wrong = cli.ends(USAGE, &["--json", "job", "list", "orders", "--limit", "-1"]).await;
    let error: Value = serde_json::from_str(wrong.err.trim()).unwrap();
    assert_eq!(error["code"], USAGE);
    // A group may have such a name.
    cli.enqueue("-1").await;
    cli.ends(DONE, &["lane", "orders", "-1"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn a_blocked_lane_is_named_with_the_session_that_blocks_it() {
    let cli = Cli::new().await;
    let pool = cli.database.pool();
    let job = cli.enqueue("ann").await;
    let long_ago = format!(
        "update seriatim.job set flagged = false, run_at = now() - interval '1 h', turn_at = run_at;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id, rechecks) \
         values ('orders', 'ann', now() + interval '1 s', {job}, 6)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(long_ago)).execute(pool).await.unwrap();
    let mut open = pool.begin().await.unwrap();
    let lock = "set local application_name = 'psql of bob'; select 1 from seriatim.job for update";
    sqlx::raw_sql(lock).execute(&mut *open).await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *open).await.unwrap();
    // Shorter ones are claims.
    let deadline = Instant::now() + PATIENCE;
    let found = loop {
        let found = cli.run(&["doctor", "--json"]).await.json();
        let found = found.into_iter().find(|finding| finding["check"] == "blocked lanes").unwrap();
        if found["level"] == "problem" {
            break found;
        }
        assert!(Instant::now() < deadline, "{found}");
    };
    let sentence = found["sentence"].as_str().unwrap();
    for words in ["group \"ann\"", "due for 60 min", &format!("session {pid} (\"psql of bob\")")] {
        assert!(sentence.contains(words), "{words}: {sentence}");
    }
    let mend = found["mend"].as_str().unwrap();
    assert!(mend.contains(&format!("pg_terminate_backend({pid})")), "{mend}");
    let groups = cli.ends(DONE, &["groups", "orders", "--sort", "wait"]).await.out;
    assert!(groups.contains("locked by another transaction"), "{groups}");
    open.rollback().await.unwrap();
    cli.remove().await;
}

/// Fields have one case, and no time is a pair of numbers.
fn sound(value: &Value, args: &[&str]) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(field.chars().all(plain), "{args:?}: {field}");
                assert!(!["secs", "nanos"].contains(&&**field), "{args:?}: {value}");
                sound(value, args);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| sound(value, args)),
        _ => {}
    }
}

/// The rule of docs/guide/command-line.md, over all commands.
#[tokio::test]
async fn json_of_a_list_is_an_object_a_line_with_the_librarys_names() {
    let cli = Cli::new().await;
    let first = &*cli.enqueue("ann").await.to_string();
    cli.enqueue("dan").await;
    cli.ends(DONE, &["move-task", "start", "orders", "--to", "other", "--yes"]).await;
    let lists: [&[&str]; 13] = [
        &["move-task", "list"],
        &["queues"],
        &["groups", "orders"],
        &["lane", "orders", "ann"],
        &["explain", first],
        &["job", "show", first],
        &["job", "show", first, "--data"],
        &["job", "list", "orders"],
        &["configure", "orders"],
        &["doctor"],
        &["metrics"],
        &["receive", "orders", "--group", "dan"],
        &["migrate", "--check"],
    ];
    for args in lists {
        let lines = cli.json(args).await;
        assert!(!lines.is_empty() && lines.iter().all(Value::is_object), "{args:?}: {lines:?}");
        lines.iter().filter(|_| args[0] != "metrics").for_each(|line| sound(line, args));
    }
    // The names are those of the library.
    let shown = cli.json(&["job", "show", first, "--data"]).await;
    let job = cli.client.job(cli.database.pool(), first.parse().unwrap()).await.unwrap().unwrap();
    for (field, value) in serde_json::to_value(job).unwrap().as_object().unwrap() {
        assert_eq!(&shown[0][field], value, "{field}");
    }
    cli.remove().await;
}

#[tokio::test]
async fn json_of_a_change_names_the_action_and_says_whether_it_was_a_dry_run() {
    let cli = Cli::new().await;
    let mut ids = Vec::new();
    for group in ["ann", "ann", "bob", "cid", "dan"] {
        ids.push(cli.enqueue(group).await.to_string());
    }
    let [first, third, fourth] = [0, 2, 3].map(|n| ids[n].as_str());
    let changes: [&[&str]; 21] = [
        &["pause", "orders"],
        &["resume", "orders"],
        &["pause", "orders", "ann"],
        &["resume", "orders", "ann"],
        &["configure", "orders", "--delay", "0"],
        &["enqueue", "orders"],
        &["job", "run-now", first],
        &["job", "cancel", third],
        &["job", "retry", third],
        &["job", "skip", third],
        &["redrive", "orders"],
        &["move-task", "start", "orders", "--to", "moved"],
        &["move-task", "cancel", "2"],
        &["job", "move", fourth, "--to", "other"],
        &["job", "skip", third, fourth],
        &["discard", "orders"],
        &["purge", "orders", "ann"],
        &["purge", "other"],
        &["purge", "orders", "--everything"],
        &["purge", "orders", "--everything"],
        &["migrate"],
    ];
    for args in changes {
        for dry_run in [true, false] {
            let flags: &[&str] = if dry_run { &["--yes", "--dry-run"] } else { &["--yes"] };
            // Job 4 was moved, and is cancelled: of two jobs one is changed.
            let code = if args.len() == 4 && args[1] == "skip" { ERROR } else { DONE };
            let ran = cli.ends(code, &[&["--json"], args, flags].concat()).await;
            let lines = ran.json();
            assert!(!lines.is_empty(), "{args:?}: {}", ran.err);
            for line in lines {
                assert!(line["action"].is_string(), "{args:?}: {line}");
                assert_eq!(line["dry_run"], dry_run, "{args:?}: {line}");
                sound(&line, args);
            }
        }
    }
    assert!(cli.json(&["log"]).await.len() > 5);
    assert_eq!(cli.status(2).await, JobStatus::Cancelled);
    cli.remove().await;
}

#[tokio::test]
async fn json_of_nothing_is_no_line_and_an_error() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    // What is not there prints no line, and an error with its exit code.
    let empty: [&[&str]; 20] = [
        &["dead-letters", "none"],
        &["move-task", "list"],
        &["move-task", "start", "none"],
        &["move-task", "cancel", "4711"],
        &["move-task", "run"],
        &["groups", "none"],
        &["lane", "none", "none"],
        &["explain", "4711"],
        &["job", "show", "4711"],
        &["job", "list", "none"],
        &["job", "retry", "4711", "4712"],
        &["job", "move", "4711", "--to", "other"],
        &["parked", "list", "orders"],
        &["parked", "redrive", "orders", "ann"],
        &["park", "orders", "none"],
        &["unhalt", "orders", "none"],
        &["redrive", "none"],
        &["purge", "none"],
        &["receive", "none"],
        &["nodes"],
    ];
    for args in empty {
        let nothing = cli.ends(NOTHING, &[&["--json", "--yes"], args].concat()).await;
        assert!(nothing.out.is_empty(), "{args:?}: {}", nothing.out);
        for line in nothing.err.lines() {
            let error: Value = serde_json::from_str(line).unwrap();
            assert!(error["error"].is_string(), "{args:?}: {error}");
            assert_eq!(error["code"], NOTHING, "{args:?}: {error}");
        }
        assert!(!nothing.err.is_empty(), "{args:?}");
    }
    let several = cli.ends(NOTHING, &["--json", "--yes", "job", "retry", "4711", "4712"]).await;
    let jobs: Vec<Value> =
        several.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&jobs[0]["job"], &jobs[1]["job"]), (&json!(4711), &json!(4712)));
    cli.remove().await;
}

#[tokio::test]
async fn a_history_is_checked_without_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.jsonl");
    let file = file.to_str().unwrap();
    let check = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        command.env_remove("DATABASE_URL").args(args).arg("check-history").arg(file);
        ran(command.output().await.unwrap())
    };
    let missing = check(&[]).await;
    assert_eq!(missing.code, USAGE, "{}", missing.err);
    assert!(missing.err.contains("cannot be read"), "{}", missing.err);

    // Nothing is kept by a record of nothing.
    std::fs::write(file, "\n").unwrap();
    let empty = check(&[]).await;
    assert_eq!(empty.code, USAGE, "{}", empty.out);
    assert!(empty.err.contains("no event"), "{}", empty.err);

    let document = include_str!("../../../docs/history.md");
    let good = document.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(file, good).unwrap();
    let kept = check(&[]).await;
    assert_eq!(kept.code, DONE, "{}", kept.out);
    assert!(kept.out.ends_with("no violation of P1, P2, P3, P4, P9 or P10\n"), "{}", kept.out);

    // The second job of the group runs while the first one does.
    let early = good.replace("\"at\":2202000", "\"at\":2106500");
    assert_ne!(early, good);
    std::fs::write(file, early).unwrap();
    let broken = check(&[]).await;
    assert_eq!(broken.code, 1, "{}", broken.out);
    assert!(broken.out.contains("P2 one at a time"), "{}", broken.out);
    assert_eq!(broken.err, "", "the stories have told it");
    let stories = check(&["--json"]).await;
    assert!(stories.json().iter().any(|story| story["promise"] == "P2 one at a time"));
}

/// Dead letters of the queue `orders` in the queue `dead`: two of ann's, one of bob's.
async fn dead_letters(cli: &Cli) -> [i64; 3] {
    cli.ends(DONE, &["configure", "orders", "--dead-letter-queue", "dead"]).await;
    let mut ids = Vec::new();
    for group in ["ann", "bob", "ann"] {
        ids.push(cli.enqueue(group).await);
    }
    cli.fail(OutOfAttempts::Continue).await;
    ids.try_into().unwrap()
}

#[tokio::test]
async fn dead_letters_in_a_queue_of_their_own_are_found_and_come_back() {
    let cli = Cli::new().await;
    let ids = dead_letters(&cli).await;
    let listed = cli.ends(DONE, &["dead-letters", "orders"]).await;
    assert!(listed.out.contains("dead") && listed.out.contains("the bank"), "{}", listed.out);
    let listed = cli.json(&["dead-letters", "orders", "--group", "ann"]).await;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["dead_letter_queue"], "dead");
    let shown = cli.ends(DONE, &["job", "show", &ids[0].to_string()]).await;
    assert!(shown.out.contains("failed in    orders"), "{}", shown.out);

    // Who names the queue in which they wait is told what brings them back.
    for command in ["dead-letters", "redrive", "discard"] {
        let none = cli.ends(NOTHING, &[command, "dead"]).await;
        let advice = "those of queue \"orders\" wait in it: `seriatim redrive orders` or \
                      `seriatim move-task start dead`";
        assert!(none.err.contains(advice), "{}", none.err);
    }
    let some = ["redrive", "orders", "--group", "bob"];
    assert_eq!(cli.json(&some).await[0]["moved_back"], 1);
    let asked = cli.ends(REFUSED, &["redrive", "orders"]).await;
    let words =
        "2 jobs of 1 group of queue \"orders\" queued again, in their order; 2 of them from";
    assert!(asked.err.contains(words), "{}", asked.err);
    cli.ends(DONE, &["discard", "orders", "--limit", "1"]).await;
    assert_eq!(cli.status(ids[0]).await, JobStatus::Cancelled);
    cli.ends(DONE, &["redrive", "orders"]).await;
    let back = cli.json(&["job", "list", "orders", "--status", "queued"]).await;
    assert_eq!(back.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [ids[2], ids[1]]);
    cli.remove().await;
}

#[tokio::test]
async fn a_move_task_is_started_carried_on_listed_and_cancelled() {
    let cli = Cli::new().await;
    dead_letters(&cli).await;
    let start = ["move-task", "start", "dead"];
    let preview = cli.ends(DONE, &[&start[..], &["--dry-run"]].concat()).await;
    let words = "moves 3 jobs of queue \"dead\" back to where it came from as a dead letter";
    assert!(preview.out.contains(words), "{}", preview.out);
    cli.ends(NOTHING, &["move-task", "list"]).await;
    cli.ends(REFUSED, &start).await;
    let slow = [&start[..], &["--per-second", "1", "--yes"]].concat();
    let started = cli.ends(DONE, &slow).await;
    assert!(started.out.contains("1 a second at most"), "{}", started.out);
    assert!(started.err.contains("`seriatim move-task run` carries it on"), "{}", started.err);
    let twice = cli.ends(REFUSED, &slow).await;
    assert!(twice.err.contains("cancel it by `seriatim move-task cancel TASK`"), "{}", twice.err);
    let task = cli.json(&["move-task", "list", "dead"]).await[0].clone();
    assert_eq!((&task["status"], &task["to_queue"]), (&json!("running"), &Value::Null));
    let id = task["id"].to_string();
    let dry = cli.json(&["move-task", "run", "--dry-run"]).await;
    assert_eq!(dry[0]["jobs"], 1);
    cli.ends(DONE, &["move-task", "cancel", &id]).await;
    cli.ends(NOTHING, &["move-task", "cancel", &id]).await;

    // Somewhere else, and a queue that nobody names is doubted.
    let elsewhere = ["move-task", "start", "dead", "--to", "elswhere"];
    let doubted = cli.ends(REFUSED, &elsewhere).await;
    assert!(doubted.err.contains("is it mistyped?"), "{}", doubted.err);
    cli.ends(USAGE, &["move-task", "start", "dead", "--to", "dead"]).await;
    cli.ends(USAGE, &["move-task", "start", "dead", "--per-second", "0"]).await;
    cli.ends(DONE, &[&start[..], &["--yes"]].concat()).await;
    assert_eq!(cli.json(&["move-task", "run"]).await[0]["jobs"], 3);
    let listed = cli.ends(DONE, &["move-task", "list"]).await;
    assert!(listed.out.contains("completed") && listed.out.contains("(back)"), "{}", listed.out);
    assert_eq!(cli.json(&["job", "list", "orders", "--status", "queued"]).await.len(), 3);
    cli.ends(NOTHING, &start).await;
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
        asked.err.contains("1 queued job of queue \"orders\" and 1 in flight"),
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

//! `seriatim demo`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use seriatim::primary::Follow;
use seriatim::testing::Server;
use sqlx::{ConnectOptions, PgConnection};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::size::long;
use crate::support::{DONE, ERROR, NOTHING, PATIENCE, Served, get, ran};

/// Between two looks at what is waited for: to look takes a process, or the page.
const LOOK: Duration = Duration::from_millis(100);

/// The closing scenario: the five faults of the demo, found and mended by commands alone.
#[tokio::test]
async fn the_faults_of_the_demo_are_mended_by_commands() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    let demo = Served::start(demo.args(["demo", "--json"])).await;
    let url = demo.text("database_url").to_owned();
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
            sleep(LOOK).await;
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
    says(&["groups", "orders", "--state", "running"], DONE, "s of 5 min").await;
    let lane = ["lane", "orders", "customer-17"];
    let hangs = says(&lane, DONE, "`seriatim job abort ").await;
    let job = hangs.split_once("job abort ").unwrap().1.split_once('`').unwrap().0.to_owned();
    does(&["job", "abort", &job]).await;
    says(&lane, NOTHING, "has no unfinished job").await;
    // A report that shows how far it is, and makes itself each night. The first one may be over.
    does(&["schedule", "fire", "close the day"]).await;
    says(&["lane", "reports", "the shop"], DONE, "of 20").await;
    says(&["schedule", "list"], DONE, "0 3 * * * in Europe/Berlin").await;
    // A server that answered 429: its group rests for a while.
    says(&["groups", "webhooks", "--state", "paused"], DONE, "their server answered 429").await;
    // A tenant with a limit, whose documents are a batch.
    says(&["groups", "imports", "--state", "gated"], DONE, "tenant-1/account-").await;
    says(&["queues"], DONE, "at most 2 groups for each limit key").await;
    says(&["batch", "list"], DONE, "tenant-1").await;
    // The forgotten pause.
    says(&["groups", "webhooks", "--state", "paused"], DONE, "customer-7").await;
    does(&["resume", "webhooks", "customer-7"]).await;
    // The queue that nobody serves.
    says(&["queues"], DONE, "no living processor or receiver serves it").await;
    does(&["move-task", "start", "weebhooks", "--to", "webhooks"]).await;
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
    demo.interrupt().await;
}

#[tokio::test]
async fn the_demo_tells_its_address_and_leaves_nothing() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    let demo = Served::start(demo.args(["demo", "--json"])).await;
    let url = demo.text("database_url").to_owned();
    let page = get(demo.text("page"), "").await;
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let shop = async |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        ran(command.args(args).env("DATABASE_URL", &url).output().await.unwrap())
    };
    let deadline = Instant::now() + PATIENCE;
    while shop(&["groups", "orders", "--state", "halted"]).await.code != DONE {
        assert!(Instant::now() < deadline, "the poisoned customer is not halted");
        sleep(LOOK).await;
    }
    assert_eq!(shop(&["groups", "webhooks", "--state", "paused"]).await.code, DONE);
    // Metrics of the fleet, and of the demo's own workers.
    let scrape = get(&format!("{}metrics", demo.text("page")), "").await;
    for metric in ["seriatim_queue_jobs{", "seriatim_slot_wait_seconds_bucket{"] {
        assert!(scrape.contains(metric), "{scrape}");
    }
    demo.interrupt().await;
    assert_eq!(shop(&["queues"]).await.code, ERROR, "its server still runs");
}

/// For a container or a colleague: the page on all addresses, behind a password.
#[tokio::test]
async fn the_page_of_the_demo_listens_where_it_is_told_to_behind_a_password() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    demo.args(["demo", "--json", "--listen", "0.0.0.0:0"]).env("SERIATIM_SECRET", "sesame");
    let demo = Served::start(&mut demo).await;
    let page = demo.text("page");
    assert!(page.starts_with("http://0.0.0.0:"), "{}", demo.told);
    assert!(demo.told["generated_secret"].is_null(), "{}", demo.told);
    assert!(get(page, "").await.starts_with("HTTP/1.1 401"));
    let seen = get(page, "Authorization: Basic b3BlcmF0b3I6c2VzYW1l\r\n").await;
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    demo.interrupt().await;
}

/// A server of the demo: its folder, and its process.
struct Found {
    folder: PathBuf,
    process: PathBuf,
}

impl Found {
    /// All servers of these hosts.
    async fn all(url: &str) -> Vec<Self> {
        let mut found = Vec::new();
        for host in Follow::url(url).unwrap().hosts() {
            let mut conn: PgConnection = host.connect().await.unwrap();
            let data = sqlx::query_scalar::<_, String>("show data_directory");
            let data = PathBuf::from(data.fetch_one(&mut conn).await.unwrap());
            let pid = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
            let process = PathBuf::from("/proc").join(pid.lines().next().unwrap());
            found.push(Self { folder: data.parent().unwrap().to_owned(), process });
        }
        found
    }

    async fn goes(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.folder.exists() || self.process.exists() {
            assert!(Instant::now() < deadline, "{} is left behind", self.folder.display());
            // It is removed by no child of this process.
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_failover_of_the_demo_is_seen_on_the_page_and_breaks_no_promise() {
    if !long() {
        return;
    }
    let programs = Server::shared().await.unwrap();
    if programs.binaries().is_some_and(|folder| !folder.join("pg_basebackup").is_file()) {
        println!("skipped: the server's programs have no `pg_basebackup`");
        return;
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    let demo = demo.args(["demo", "--json", "--servers", "3", "--failover=5"]);
    let mut demo = Served::start(demo).await;
    let servers = demo.text("servers").to_owned();
    let mut found = Vec::new();
    for server in servers.split(' ') {
        found.extend(Found::all(server.split_once('=').unwrap().1).await);
    }
    assert_eq!(found.len(), 4, "{servers}");
    let page = demo.text("page").to_owned();
    let front = get(&page, "").await;
    for shard in ["shard/0/", "shard/1/", "shard/2/"] {
        assert!(front.contains(shard), "{front}");
    }
    assert!(!front.contains("another primary"), "{front}");
    // Waits until the page says this of the servers.
    let shows = async |what: fn(&Value) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = get(&format!("{page}api/v1/servers"), "").await;
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            if what(&serde_json::from_str(body).unwrap()) {
                return;
            }
            assert!(Instant::now() < deadline, "{answer}");
            sleep(LOOK).await;
        }
    };

    let event = demo.next().await;
    assert_eq!((event["event"].as_str(), &event["shard"]), (Some("primary_killed"), &1.into()));
    shows(|servers| servers[1]["error"].is_string()).await;
    shows(|servers| servers[0].get("error").is_none() && servers[2].get("error").is_none()).await;
    assert!(!found[1].process.exists(), "its primary still runs");
    let event = demo.next().await;
    assert_eq!(event["event"], "standby_promoted", "{event}");
    let event = demo.next().await;
    assert_eq!(event["event"], "works_again", "{event}");
    assert!(event["after_s"].as_f64() > event["after_promotion_s"].as_f64(), "{event}");
    assert!(event["jobs_of_others"].as_u64() > Some(0), "{event}");
    shows(|servers| servers[1]["took_over"]["timeline"] == 2).await;
    let front = get(&page, "").await;
    assert!(front.contains("another primary took over <time"), "{front}");
    assert!(front.contains("(timeline 2)") && !front.contains("no answer"), "{front}");

    let judged = demo.next().await;
    assert_eq!((&judged["event"], &judged["kept"]), (&"judged".into(), &true.into()), "{judged}");
    assert!(judged["jobs"].as_u64() > Some(20) && judged["runs"].as_u64() > Some(20), "{judged}");
    // The URL with two hosts leads commands to the promoted one.
    let mut queues = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    queues.arg("queues").env("SERIATIM_SERVERS", &servers).env_remove("DATABASE_URL");
    let queues = ran(queues.output().await.unwrap());
    assert_eq!(queues.code, DONE, "{}", queues.err);
    demo.interrupt().await;
    for server in &found {
        server.goes().await;
    }
}

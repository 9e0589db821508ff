//! `seriatim demo`.

use tokio::process::Command;
use tokio::time::Instant;

use crate::support::{DONE, ERROR, NOTHING, PATIENCE, Served, get, ran};

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
    // A report that shows how far it is, and makes itself each night.
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

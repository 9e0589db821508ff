//! The closing scenario: `seriatim demo`, and its five faults found and mended by the page alone.
//! It prints the keys, clicks and seconds of each (`--nocapture`).

#[path = "../../../seriatim-web/tests/web/chromium.rs"]
#[allow(dead_code)]
mod chromium;

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use seriatim::{Client, JobStatus};
use sqlx::PgPool;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use chromium::{Browser, ENTER, browser};

const LIMIT: Duration = Duration::from_mins(1);

/// A person with a keyboard and a mouse, and what it took.
struct Person {
    browser: Browser,
    keys: usize,
    clicks: usize,
    since: Instant,
    took: Vec<String>,
}

impl Person {
    async fn begin(&mut self, page: &str) {
        self.browser.client.goto(page).await.unwrap();
        self.browser.see("main h1").await;
        (self.keys, self.clicks, self.since) = (0, 0, Instant::now());
    }

    fn end(&mut self, fault: &str) {
        let seconds = self.since.elapsed().as_secs_f64();
        let (keys, clicks) = (self.keys, self.clicks);
        self.took.push(format!("| {fault} | {keys} | {clicks} | {seconds:.1} |"));
    }

    async fn press(&mut self, keys: &str) {
        self.keys += keys.chars().count();
        self.browser.press(keys).await;
    }

    /// Clicks the link or button with this text, in the selected row if there is one.
    async fn click(&mut self, css: &str, text: &str) {
        self.clicks += 1;
        let script = "const [css, text] = arguments; \
            const found = [...document.querySelectorAll(css)] \
              .find((at) => at.textContent.includes(text)); \
            found?.click(); return found !== undefined";
        let arguments = vec![Value::from(css), Value::from(text)];
        eventually(&format!("{css} with {text}"), async || {
            self.browser.client.execute(script, arguments.clone()).await.unwrap() == true
        })
        .await;
    }

    /// Opens a choice and takes the one with this text.
    async fn choose(&mut self, name: &str, text: &str) {
        self.clicks += 2;
        let choice = self.browser.see(&format!("select[name={name}]")).await;
        choice.select_by_label(text).await.unwrap();
    }

    /// Moves down until the selected row has this text.
    async fn move_to(&mut self, text: &str) {
        self.browser.reads("main", text).await;
        for _ in 0..30 {
            self.press("j").await;
            let selected = "return document.querySelector('.selected')?.textContent ?? ''";
            if self.browser.script(selected).await.as_str().unwrap().contains(text) {
                return;
            }
        }
        panic!("no row has {text}");
    }

    /// Reads what an action would do, says why, and does it.
    async fn confirm(&mut self, preview: &str, reason: &str) {
        self.browser.reads("#ask-preview", preview).await;
        self.press(reason).await;
        self.press(ENTER).await;
        let closed = "return !document.getElementById('ask').open";
        eventually("it is done", async || self.browser.script(closed).await == true).await;
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waits = async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, waits).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"));
}

/// Waits until a group of `orders` has no unfinished job.
async fn drained(pool: &PgPool, group: &str) {
    eventually(group, async || {
        Client::default().group_jobs(pool, "orders", group, 1).await.unwrap().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_faults_of_the_demo_are_mended_by_the_page_alone() {
    let Some(browser) = browser(false, 1280).await else { return };
    let mut demo = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    demo.args(["demo", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let told = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    let page = told["page"].as_str().unwrap().to_owned();
    let pool = PgPool::connect(told["database_url"].as_str().unwrap()).await.unwrap();
    let client = Client::default();
    let took = vec![String::from("| fault | keys | clicks | seconds |")];
    let mut person = Person { browser, keys: 0, clicks: 0, since: Instant::now(), took };

    // The shop runs for a moment before anybody looks.
    eventually("the customer is poisoned", async || {
        !client.halted_groups(&pool, "orders").await.unwrap().is_empty()
    })
    .await;
    eventually("an order hangs", async || {
        let jobs = client.group_jobs(&pool, "orders", "customer-17", 1).await.unwrap();
        jobs.first().is_some_and(|job| job.status == JobStatus::Started)
    })
    .await;

    person.begin(&page).await;
    person.click("nav a", "Stopped").await;
    person.move_to("customer-13").await;
    person.press("s").await;
    person.confirm("is given up", "refund by hand").await;
    drained(&pool, "customer-13").await;
    person.end("a poisoned customer");

    person.begin(&page).await;
    person.click("nav a", "Stopped").await;
    person.move_to("customer-7").await;
    person.press("p").await;
    person.confirm("goes on", "it is Tuesday").await;
    // Another one may rest, as its server answered 429.
    let paused = client.paused_groups(&pool, "webhooks").await.unwrap();
    assert!(paused.iter().all(|paused| paused.group != "customer-7"), "{paused:?}");
    person.end("a forgotten pause");

    person.begin(&page).await;
    person.click("nav a", "Stopped").await;
    person.move_to("weebhooks").await;
    person
        .browser
        .reads(".selected .why", "No living processor or receiver serves this queue")
        .await;
    person.press(ENTER).await;
    person.click("button.act", "Purge").await;
    person.confirm("unfinished job of queue \"weebhooks\" is cancelled", "mistyped").await;
    assert_eq!(client.counts(&pool, "weebhooks").await.unwrap().unfinished(), 0);
    person.end("a queue that nobody serves");

    person.begin(&page).await;
    person.click("td.name a", "orders").await;
    person.choose("state", "running").await;
    person.click(".filter button", "Show").await;
    person.move_to("customer-17").await;
    person.browser.reads(".selected .why", "is running (attempt 1").await;
    person.click(".selected button.act", "Abort").await;
    person.confirm("its handler dropped", "it hangs").await;
    drained(&pool, "customer-17").await;
    person.end("an order that hangs");

    person.begin(&page).await;
    person.click("td.name a", "orders").await;
    person.choose("sort", "longest wait first").await;
    person.click(".filter button", "Show").await;
    person.move_to("customer-11").await;
    person.press("e").await;
    person.browser.reads(".selected .why.whole", "a transaction has had its row").await;
    let why = "return document.querySelector('.selected .why').textContent";
    let why = person.browser.script(why).await.as_str().unwrap().to_owned();
    println!("{why}");
    person.end("a transaction that was left open (it names the session)");
    // Ending a session is no action of the page; that it is the right one shows.
    let pid = why.split("database session ").nth(1).unwrap();
    let pid: i32 = pid[..pid.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap();
    let ended: bool = sqlx::query_scalar("select pg_terminate_backend($1)")
        .bind(pid)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert!(ended);
    drained(&pool, "customer-11").await;

    println!("{}", person.took.join("\n"));
    pool.close().await;
    let pid = demo.id().unwrap().to_string();
    Command::new("kill").arg(&pid).status().await.unwrap();
    assert!(timeout(LIMIT, demo.wait()).await.unwrap().unwrap().success());
    person.browser.close().await;
}

//! The page in headless Chromium, driven by keys as a person would.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use seriatim::testing::Jobs;
use seriatim::{NewJob, OutOfAttempts, Processor, QueueOptions, Receive, RetryPolicy};
use seriatim_web::{Access, Auth, Config, Identity};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{LIMIT, Shop, Work, encode, eventually, request, serve};

/// A browser, and the driver that ends with it.
struct Browser {
    client: Client,
    _driver: Child,
}

/// Starts Chromium; `None`, loudly, if none is installed.
async fn browser(dark: bool, width: u32) -> Option<Browser> {
    let started = Command::new("chromedriver")
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut driver) = started else {
        assert!(
            std::env::var_os("SERIATIM_NEEDS_BROWSER").is_none(),
            "chromedriver is not installed, and SERIATIM_NEEDS_BROWSER is set"
        );
        eprintln!("SKIPPED: no chromedriver. Install the packages chromium and chromium-driver.");
        return None;
    };
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let port = loop {
        let line = lines.next_line().await.unwrap().expect("chromedriver ended");
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            break port.trim_end_matches('.').to_owned();
        }
    };
    // It must be able to write on.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let mut arguments = vec![
        String::from("--headless=new"),
        String::from("--no-sandbox"),
        String::from("--disable-gpu"),
        String::from("--disable-dev-shm-usage"),
        String::from("--hide-scrollbars"),
        format!("--window-size={width},900"),
    ];
    if dark {
        arguments.push(String::from("--force-dark-mode"));
        arguments.push(String::from("--blink-settings=preferredColorScheme=0"));
    }
    let options = json!({
        "goog:chromeOptions": { "args": arguments },
        "goog:loggingPrefs": { "browser": "ALL" },
    });
    let capabilities: Capabilities = serde_json::from_value(options).unwrap();
    let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
        .capabilities(capabilities)
        .connect(&format!("http://127.0.0.1:{port}"))
        .await
        .unwrap();
    Some(Browser { client, _driver: driver })
}

impl Browser {
    async fn open(&self, page: SocketAddr, path: &str) {
        self.client.goto(&format!("http://localhost:{}{path}", page.port())).await.unwrap();
        self.see("main h1").await;
    }

    /// Waits for an element.
    async fn see(&self, css: &str) -> fantoccini::elements::Element {
        let found = self.client.wait().at_most(LIMIT).for_element(Locator::Css(css)).await;
        found.unwrap_or_else(|error| panic!("{css} did not appear: {error}"))
    }

    /// Waits until the text of an element contains another.
    async fn reads(&self, css: &str, text: &str) {
        eventually(&format!("{css} reads {text}"), async || {
            match self.client.find(Locator::Css(css)).await {
                Ok(found) => found.text().await.is_ok_and(|all| all.contains(text)),
                Err(_) => false,
            }
        })
        .await;
    }

    /// Presses keys where the focus is.
    async fn press(&self, keys: &str) {
        self.client.active_element().await.unwrap().send_keys(keys).await.unwrap();
    }

    async fn script(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// Fails if the page's policy was broken, or its script failed.
    async fn close(self) {
        self.client.close().await.unwrap();
    }
}

const ENTER: &str = "\u{e007}";

fn local(access: Access) -> Config {
    Config::new().auth(Auth::Loopback(access))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_group_is_found_explained_and_retried_by_keys() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/stopped").await;
    browser.press("j").await;
    browser.reads(".lane.selected", "customer-17").await;
    browser.press("e").await;
    browser.reads(".lane.selected .why.whole", "the bank answered 402").await;
    browser.press("r").await;
    browser.reads("#ask-preview", "runs again, next in its group").await;
    shop.mended.store(true, Ordering::Relaxed);
    browser.press("the bank is back").await;
    browser.press(ENTER).await;
    browser.reads("#told", "runs again").await;
    shop.drained("orders", "customer-17").await;
    // It refreshes by itself.
    browser.reads("main", "Nothing stands.").await;
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_is_opened_paused_and_resumed_by_keys() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.see(".lanes").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.see(".timeline").await;
    for (verb, then) in [("starts until it is resumed", "Resume"), ("goes on", "Pause")] {
        browser.press("p").await;
        browser.reads("#ask-preview", verb).await;
        browser.press("their audit").await;
        browser.press(ENTER).await;
        browser.reads("[data-whole] .acts", then).await;
    }
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn find_leads_to_a_job() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(1).await;
    let page = serve(shop.pool(), local(Access::Viewer)).await;
    browser.open(page, "/").await;
    browser.press("/").await;
    browser.press(&shop.poison.to_string()).await;
    browser.press(ENTER).await;
    browser.reads("h1", "Find").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.reads("h1", &format!("Job {}", shop.poison)).await;
    // A viewer's key does nothing.
    browser.press("r").await;
    assert_eq!(browser.script("return document.getElementById('ask').open").await, false);
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_run_no_script() {
    let Some(browser) = browser(false, 400).await else { return };
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    let attack = "<img src=x onerror=\"window.harmed=1\"><script>window.harmed=1</script>";
    shop.enqueue("orders", attack, &format!("poison {attack}"), attack).await;
    shop.enqueue("orders", &"wide".repeat(100), "poison", &"wide".repeat(100)).await;
    shop.halted("orders", attack).await;
    shop.halted("orders", &"wide".repeat(100)).await;
    let lane = format!("/lane?queue=orders&group={}", encode(attack));
    let wide = format!("/lane?queue=orders&group={}", encode(&"wide".repeat(100)));
    for path in ["/", "/stopped", "/queue?name=orders", &lane, &wide] {
        browser.open(page, path).await;
        let harmed = browser.script("return window.harmed ?? 0").await;
        assert_eq!(harmed, 0, "{path}");
        let wider = "return document.documentElement.scrollWidth - window.innerWidth";
        assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "{path} scrolls sideways");
    }
    browser.press("r").await;
    browser.reads("#ask-preview", "runs again").await;
    assert_eq!(browser.script("return window.harmed ?? 0").await, 0);
    browser.close().await;
    shop.close().await;
}

/// A refresh takes neither the focus, nor the selection, nor what was opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_moves_nothing() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/queue?name=orders").await;
    browser.press("j").await;
    browser.press("e").await;
    browser.see(".lane.selected .why.whole").await;
    let listen = "document.getElementById('main').addEventListener('refreshed', \
                  () => { window.refreshed = 1; })";
    browser.script(listen).await;
    shop.enqueue("orders", "customer-17", "fine", "ship").await;
    eventually("the page refreshed", async || {
        browser.script("return window.refreshed ?? 0").await == 1
    })
    .await;
    browser.see(".lane.selected .why.whole").await;
    let focused = browser.script("return document.activeElement.textContent").await;
    assert_eq!(focused, "customer-17");
    browser.close().await;
    shop.close().await;
}

/// Opens a richer shop, in which each state can be seen.
async fn shop_in_every_state() -> Shop {
    let shop = Shop::open(9).await;
    let pool = shop.pool();
    let client = &shop.client;
    for data in ["fine", "fine", "nap", "fine", "flaky", "fine", "nap"] {
        shop.enqueue("orders", "customer-7", data, "ship").await;
    }
    shop.drained("orders", "customer-7").await;
    // Group names of a real shop, in the states that they are in.
    client
        .acting_as("bob")
        .pause_group(pool, "orders", "customer-42", Some("their audit, until Friday"))
        .await
        .unwrap();
    for _ in 0..4 {
        shop.enqueue("orders", "customer-42", "fine", "ship").await;
    }
    for n in [101, 102, 103] {
        let job = NewJob::new("orders", &"fine").group(format!("customer-{n}")).name("remind");
        client.enqueue(pool, job.delay(Duration::from_mins(n))).await.unwrap();
    }
    shop.enqueue("orders", "customer-7", "slow", "export").await;
    for _ in 0..140 {
        shop.enqueue("orders", "customer-7", "fine", "ship").await;
    }
    shop.enqueue("orders", "سلة \u{202e}مشتريات", "slow", "import").await;
    shop.enqueue("orders", "客户 88", "fine", "ship").await;
    shop.enqueue("orders", "customer-9", "fine", "ship").await;
    let webhooks = QueueOptions::new("webhooks")
        .retry(RetryPolicy::new(1))
        .out_of_attempts(OutOfAttempts::Park);
    let work = Work { mended: std::sync::Arc::default() };
    let parks = Processor::builder(pool.clone())
        .queue(webhooks, work)
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    shop.enqueue("webhooks", "https://shop.example/hook", "poison", "post").await;
    for _ in 0..5 {
        shop.enqueue("webhooks", "https://shop.example/hook", "fine", "post").await;
    }
    eventually("jobs are parked", async || {
        !client.parked_groups(pool, "webhooks").await.unwrap().is_empty()
    })
    .await;
    Jobs::new(pool).wait_until_idle("webhooks", LIMIT).await.unwrap();
    parks.shutdown(Duration::from_secs(5)).await;
    for n in 0..3 {
        shop.enqueue("mail", &format!("to-{n}"), "fine", "letter").await;
    }
    client.acting_as("ann").pause_queue(pool, "mail", Some("the provider is down")).await.unwrap();
    shop.enqueue("reports", "nightly", "fine", "report").await;
    client.receive(pool, Receive::new("reports")).await.unwrap();
    shop
}

/// Takes the pictures of the guide. Run it with `SERIATIM_PICTURES=docs/guide/images`.
#[tokio::test(flavor = "multi_thread")]
async fn pictures_of_every_page() {
    let Some(folder) = std::env::var_os("SERIATIM_PICTURES").map(PathBuf::from) else { return };
    let shop = shop_in_every_state().await;
    let ann = shop.client.acting_as("ann").because("the bank answers again");
    ann.run_now(shop.pool(), shop.enqueue("mail", "to-9", "fine", "letter").await).await.unwrap();
    let config = Config::new()
        .show_data(true)
        .access(|_| Identity { name: String::from("ann"), access: Access::Operator });
    let page = serve(shop.pool(), config).await;
    let job = format!("/job?id={}", shop.poison);
    let pages = [
        ("queues", "/"),
        ("queue", "/queue?name=orders"),
        ("lane", "/lane?queue=orders&group=customer-17"),
        ("lane-running", "/lane?queue=orders&group=customer-7"),
        ("job", &job),
        ("stopped", "/stopped"),
        ("parked", "/parked"),
        ("nodes", "/nodes"),
        ("log", "/log"),
        ("find", "/find?q=customer-1"),
    ];
    for (theme, dark) in [("light", false), ("dark", true)] {
        let Some(browser) = browser(dark, 1280).await else { return };
        for (name, path) in pages {
            browser.open(page, path).await;
            if !["lane", "lane-running", "job"].contains(&name) {
                browser.press("j").await;
            }
            let picture = browser.client.screenshot().await.unwrap();
            std::fs::write(folder.join(format!("page-{name}-{theme}.png")), picture).unwrap();
        }
        browser.open(page, "/queue?name=orders&state=halted").await;
        browser.press("r").await;
        browser.reads("#ask-preview", "runs again").await;
        let picture = browser.client.screenshot().await.unwrap();
        std::fs::write(folder.join(format!("page-retry-{theme}.png")), picture).unwrap();
        browser.close().await;
    }
    let Some(browser) = browser(false, 500).await else { return };
    for (name, path) in [("queues", "/"), ("stopped", "/stopped"), ("lane", pages[2].1)] {
        browser.open(page, path).await;
        let picture = browser.client.screenshot().await.unwrap();
        std::fs::write(folder.join(format!("page-{name}-telephone.png")), picture).unwrap();
    }
    browser.close().await;
    assert_eq!(request(page, "GET", "/healthz", &[], "").await.status, 200);
    shop.close().await;
}

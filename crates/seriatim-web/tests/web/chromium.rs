//! Headless Chromium, driven through chromedriver.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// The limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const TAB: &str = "\u{e004}";

/// A browser, and the driver that ends with it.
pub(crate) struct Browser {
    pub(crate) client: Client,
    _driver: Driver,
}

/// Ends its Chromium when it is dropped, also by a test that fails. A driver that is killed leaves
/// it.
struct Driver {
    process: Child,
    port: u16,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        let asked = stream.write_all(b"GET /shutdown HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let until = Instant::now() + LIMIT;
        while asked.is_ok() && Instant::now() < until && matches!(self.process.try_wait(), Ok(None))
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Starts the driver; `None` if none is installed.
async fn driver() -> Option<Driver> {
    // If two drivers take a port at the same time, one of them ends.
    for _ in 0..5 {
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let mut process = started.ok()?;
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                let port = port.trim_end_matches('.').parse().unwrap();
                // It must be able to write on.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Some(Driver { process, port });
            }
        }
    }
    panic!("chromedriver ends at once");
}

/// Starts Chromium; `None`, loudly, if none is installed.
pub(crate) async fn browser(dark: bool, width: u32) -> Option<Browser> {
    let Some(driver) = driver().await else {
        assert!(
            std::env::var_os("SERIATIM_NEEDS_BROWSER").is_none(),
            "chromedriver is not installed, and SERIATIM_NEEDS_BROWSER is set"
        );
        eprintln!("SKIPPED: no chromedriver. Install the packages chromium and chromium-driver.");
        return None;
    };
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
    let mut chrome = json!({ "args": arguments });
    // No window is as narrow as a telephone.
    if width < 500 {
        let metrics = json!({ "width": width, "height": 800, "pixelRatio": 1.0 });
        chrome["mobileEmulation"] = json!({ "deviceMetrics": metrics });
    }
    let options = json!({
        "goog:chromeOptions": chrome,
        "goog:loggingPrefs": { "browser": "ALL" },
    });
    let capabilities: Capabilities = serde_json::from_value(options).unwrap();
    let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
        .capabilities(capabilities)
        .connect(&format!("http://127.0.0.1:{}", driver.port))
        .await
        .unwrap();
    Some(Browser { client, _driver: driver })
}

impl Browser {
    pub(crate) async fn open(&self, page: SocketAddr, path: &str) {
        self.client.goto(&format!("http://localhost:{}{path}", page.port())).await.unwrap();
        self.see("main h1").await;
    }

    /// Lets the page read itself anew within seconds, however long a reading takes on this machine.
    pub(crate) async fn refresh_soon(&self) {
        self.script("setInterval(() => { main.dataset.took = 0; }, 100)").await;
    }

    /// Waits for an element.
    pub(crate) async fn see(&self, css: &str) -> fantoccini::elements::Element {
        let found = self.client.wait().at_most(LIMIT).for_element(Locator::Css(css)).await;
        found.unwrap_or_else(|error| panic!("{css} did not appear: {error}"))
    }

    /// Waits until the text of an element contains another.
    pub(crate) async fn reads(&self, css: &str, text: &str) {
        let mut seen = String::new();
        let waits = async {
            loop {
                if let Ok(found) = self.client.find(Locator::Css(css)).await {
                    seen = found.text().await.unwrap_or_default();
                }
                if seen.contains(text) {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let within = timeout(LIMIT, waits).await;
        assert!(within.is_ok(), "{css} does not read {text:?}, but {seen:?}");
    }

    /// Presses keys where the focus is.
    pub(crate) async fn press(&self, keys: &str) {
        let press = |actions: KeyActions, key| {
            actions.then(KeyAction::Down { value: key }).then(KeyAction::Up { value: key })
        };
        let keys = keys.chars().fold(KeyActions::new(String::from("keyboard")), press);
        self.client.perform_actions(keys).await.unwrap();
    }

    pub(crate) async fn script(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// Fails if the page's policy was broken, or its script failed.
    pub(crate) async fn close(self) {
        self.client.close().await.unwrap();
    }
}

//! Headless Chromium, driven through chromedriver.
//!
//! To start one takes longer than most tests. So a test that ends leaves its browser to the next
//! test that wants the same look, and the last of the tests that use one ends them all: a process
//! that has ended leaves none.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

/// The limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

/// How long a wait pauses between two looks. A look costs little, and most events come at once.
const LOOK: Duration = Duration::from_millis(20);

/// The number of browsers that may wait for a test. Each takes some 200 MB.
const MOST_IDLE: usize = 4;

pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const TAB: &str = "\u{e004}";

/// A dark theme or a light one, and the width.
type Look = (bool, u32);

/// A browser, and the driver that ends with it.
pub(crate) struct Browser {
    pub(crate) client: Client,
    driver: Driver,
    look: Look,
    in_use: InUse,
}

/// A browser that a test has left.
struct Idle {
    look: Look,
    client: Client,
    driver: Driver,
}

struct Browsers {
    in_use: usize,
    idle: Vec<Idle>,
}

static BROWSERS: Mutex<Browsers> = Mutex::new(Browsers { in_use: 0, idle: Vec::new() });

/// Talks to the drivers. The runtime of a test ends with it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Returns the browsers, also if a test has failed while it had them.
fn browsers() -> MutexGuard<'static, Browsers> {
    BROWSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a test that uses a browser, or starts one. The last one ends those that are idle.
struct InUse;

impl InUse {
    /// Returns an idle browser of this look too, if there is one.
    fn begin(look: Look) -> (Self, Option<Idle>) {
        let mut all = browsers();
        all.in_use += 1;
        let found = all.idle.iter().position(|idle| idle.look == look);
        (Self, found.map(|at| all.idle.remove(at)))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut all = browsers();
        all.in_use -= 1;
        let ended = if all.in_use == 0 { std::mem::take(&mut all.idle) } else { Vec::new() };
        // The end of a browser takes a moment, in which others may have theirs.
        drop(all);
        drop(ended);
    }
}

/// Ends its Chromium when it is dropped, also by a test that fails. A driver that is killed leaves
/// it.
struct Driver {
    process: Child,
    port: u16,
    /// Chromium leaves files there if it is ended like that.
    _folder: TempDir,
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
        let folder = TempDir::new().unwrap();
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .env("TMPDIR", folder.path())
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
                return Some(Driver { process, port, _folder: folder });
            }
        }
    }
    panic!("chromedriver ends at once");
}

/// Returns a Chromium that shows an empty page; `None`, loudly, if none is installed.
pub(crate) async fn browser(dark: bool, width: u32) -> Option<Browser> {
    let look = (dark, width);
    let (in_use, idle) = InUse::begin(look);
    if let Some(Idle { client, driver, .. }) = idle {
        return Some(Browser { client, driver, look, in_use });
    }
    let (client, driver) = RUNTIME.spawn(start(dark, width)).await.unwrap()?;
    Some(Browser { client, driver, look, in_use })
}

/// Starts Chromium.
async fn start(dark: bool, width: u32) -> Option<(Client, Driver)> {
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
    Some((client, driver))
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
        let wait = self.client.wait().at_most(LIMIT).every(LOOK);
        let found = wait.for_element(Locator::Css(css)).await;
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
                sleep(LOOK).await;
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

    /// Leaves the browser to another test, or ends it.
    pub(crate) async fn close(self) {
        let Self { client, driver, look, in_use } = self;
        // The page that was open asks for nothing any more.
        client.goto("about:blank").await.unwrap();
        let mut all = browsers();
        all.idle.push(Idle { look, client, driver });
        let ended = (all.idle.len() > MOST_IDLE).then(|| all.idle.remove(0));
        drop(all);
        drop((ended, in_use));
    }
}

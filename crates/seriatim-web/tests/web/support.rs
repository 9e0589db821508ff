//! A shop with jobs in every state, the page on a listener, and a small HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, OutOfAttempts, Processor, QueueOptions,
    RetryPolicy, Running, async_trait,
};
use seriatim_web::{Access, Auth, Config, User};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::size::size;

/// The limit of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Serves the page; returns where.
pub(crate) async fn serve(pool: &PgPool, config: Config) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(seriatim_web::serve(listener, pool.clone(), config));
    address
}

pub(crate) fn users() -> Config {
    Config::new().auth(Auth::Basic(vec![
        User::new("vic", "see", Access::Viewer),
        User::new("ann", "do", Access::Operator),
        User::new("root", "all", Access::Admin),
    ]))
}

pub(crate) const VIC: &str = "Basic dmljOnNlZQ==";
pub(crate) const ANN: &str = "Basic YW5uOmRv";
pub(crate) const ROOT: &str = "Basic cm9vdDphbGw=";

/// The address of all actions.
pub(crate) const ACTIONS: &str = "/api/v1/actions";

/// An answer over HTTP.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }
}

/// Sends one request on a connection of its own. Repeats it if its statement was cancelled: the
/// page does that after 2 s, for which a machine may stall.
pub(crate) async fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    for _ in 0..4 {
        let answer = request_once(to, method, path, headers, body).await;
        if answer.status != 503 || !answer.body.contains("did not answer within 2 s") {
            return answer;
        }
    }
    request_once(to, method, path, headers, body).await
}

async fn request_once(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut text = format!(
        "{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "host") {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        for piece in [name, ": ", value, "\r\n"] {
            text.push_str(piece);
        }
    }
    text.push_str("\r\n");
    text.push_str(body);
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub(crate) async fn get(to: SocketAddr, path: &str, user: &str) -> Answer {
    request(to, "GET", path, &[("authorization", user)], "").await
}

/// Posts as the page does.
pub(crate) async fn post(to: SocketAddr, path: &str, user: &str, body: &Value) -> Answer {
    let headers = [
        ("authorization", user),
        ("content-type", "application/json"),
        ("sec-fetch-site", "same-origin"),
        ("x-seriatim", "1"),
    ];
    request(to, "POST", path, &headers, &body.to_string()).await
}

/// Sends an action as the page does.
pub(crate) async fn act(to: SocketAddr, user: &str, action: &str, about: &Value) -> Answer {
    let mut body = about.clone();
    body["action"] = action.into();
    post(to, ACTIONS, user, &body).await
}

/// Returns whether a page offers an action: by a button, or in short by a row of a list.
pub(crate) fn offers(page: &str, action: &str) -> bool {
    page.contains(&format!("\"action\":\"{action}\"")) || page.contains(&format!("[\"{action}\""))
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waits = async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, waits).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"));
}

/// Percent-encodes a text for a query string.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Fails on `"poison"` until the shop is mended, runs on `"slow"` until told to stop.
pub(crate) struct Work {
    pub(crate) mended: Arc<AtomicBool>,
}

#[async_trait]
impl JobHandler for Work {
    type Data = String;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, data: String) -> Result<(), JobError> {
        let mended = self.mended.load(Ordering::Relaxed);
        if data.starts_with("poison") && !mended {
            let error = std::io::Error::other("the bank answered 402 Payment Required");
            let error = JobError::from(error);
            // The message is hostile where the data is.
            return Err(match data.strip_prefix("poison ") {
                Some(text) => JobError::fail(text),
                None => error,
            });
        }
        if data == "nap" {
            let pictures = std::env::var_os("SERIATIM_PICTURES").is_some();
            sleep(Duration::from_millis(if pictures { 700 } else { size(50, 700) })).await;
        }
        if data == "flaky" && job.attempt() == 1 {
            return Err(JobError::retry("connection reset by peer"));
        }
        if data == "slow" {
            job.cancelled().await;
        }
        Ok(())
    }
}

/// A database with the queues `orders`, `webhooks` and `mail`.
pub(crate) struct Shop {
    pub(crate) db: TestDatabase,
    pub(crate) client: Client,
    pub(crate) running: Option<Running>,
    pub(crate) mended: Arc<AtomicBool>,
    /// The job that halted group `customer-17` of `orders`.
    pub(crate) poison: i64,
}

impl Shop {
    /// Opens the shop with one halted group and `behind` jobs behind.
    pub(crate) async fn open(behind: usize) -> Self {
        let db = TestDatabase::create().await.unwrap();
        let client = Client::default();
        client.migrate(db.pool()).await.unwrap();
        let mended = Arc::new(AtomicBool::new(false));
        let orders = QueueOptions::new("orders")
            .concurrency(2)
            .retry(RetryPolicy::new(2).base(Duration::from_millis(30)))
            .out_of_attempts(OutOfAttempts::Halt);
        let running = Processor::builder(db.pool().clone())
            .queue(orders, Work { mended: Arc::clone(&mended) })
            .build()
            .unwrap()
            .start()
            .await
            .unwrap();
        let mut shop = Self { db, client, running: Some(running), mended, poison: 0 };
        shop.poison = shop.enqueue("orders", "customer-17", "poison", "charge card").await;
        for _ in 0..behind {
            shop.enqueue("orders", "customer-17", "fine", "ship").await;
        }
        shop.halted("orders", "customer-17").await;
        shop
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.db.pool()
    }

    pub(crate) async fn enqueue(&self, queue: &str, group: &str, data: &str, name: &str) -> i64 {
        // A job's name has at most 200 characters.
        let name: String = name.chars().take(200).collect();
        let job = NewJob::new(queue, &data).group(group).name(name);
        self.client.enqueue(self.pool(), job).await.unwrap().id()
    }

    pub(crate) async fn halted(&self, queue: &str, group: &str) {
        eventually("the group is halted", async || {
            let halted = self.client.halted_groups(self.pool(), queue).await.unwrap();
            halted.iter().any(|halted| halted.group == group)
        })
        .await;
    }

    /// Waits until a group has no unfinished job.
    pub(crate) async fn drained(&self, queue: &str, group: &str) {
        eventually("the group is drained", async || {
            self.client.group_jobs(self.pool(), queue, group, 1).await.unwrap().is_empty()
        })
        .await;
    }

    pub(crate) async fn close(mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown(Duration::from_secs(5)).await;
        }
        self.db.remove().await.unwrap();
    }
}

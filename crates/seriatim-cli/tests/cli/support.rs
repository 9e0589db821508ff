//! The program as it is built, on a database of its own.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::{Jobs, TestDatabase};
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, JobStatus, NewJob, OutOfAttempts, QueueOptions,
    RetryPolicy, async_trait,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// How long an event may take to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const DONE: i32 = 0;
pub(crate) const ERROR: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const NOTHING: i32 = 3;
pub(crate) const REFUSED: i32 = 4;

/// A database, and the binary to run on it.
pub(crate) struct Cli {
    pub(crate) database: TestDatabase,
    pub(crate) client: Client,
}

/// The exit code and the output of a run.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The lines of its output as JSON.
    pub(crate) fn json(&self) -> Vec<Value> {
        let lines = self.out.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

impl Cli {
    pub(crate) async fn new() -> Self {
        Self { database: TestDatabase::create().await.unwrap(), client: Client::default() }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        command.args(args).env("DATABASE_URL", self.database.url()).env_remove("COLUMNS");
        command.env("USER", "ann").stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args).output().await.unwrap())
    }

    /// Runs a command that must end with this code.
    pub(crate) async fn ends(&self, code: i32, args: &[&str]) -> Ran {
        let ran = self.run(args).await;
        assert_eq!(ran.code, code, "{args:?}: {}{}", ran.out, ran.err);
        ran
    }

    /// The answer of a command as JSON.
    pub(crate) async fn json(&self, args: &[&str]) -> Vec<Value> {
        self.ends(DONE, &[&["--json"], args].concat()).await.json()
    }

    pub(crate) async fn enqueue(&self, group: &str) -> i64 {
        let job = NewJob::new("orders", &json!({"secret": 4711})).group(group).name("order");
        self.client.enqueue(self.database.pool(), job).await.unwrap().id()
    }

    pub(crate) async fn status(&self, job: i64) -> JobStatus {
        self.client.job(self.database.pool(), job).await.unwrap().unwrap().status
    }

    /// Runs all due jobs of the queue `orders`. They fail at their first attempt.
    pub(crate) async fn fail(&self, then: OutOfAttempts) {
        let retry = RetryPolicy::new(1);
        let queue = QueueOptions::new("orders").retry(retry).out_of_attempts(then);
        Jobs::new(self.database.pool()).drain(queue, Fails).await.unwrap();
    }

    pub(crate) async fn remove(self) {
        self.database.remove().await.unwrap();
    }
}

/// A program that serves, until it is dropped.
pub(crate) struct Served {
    pub(crate) child: Child,
    /// The first line that it printed, as JSON.
    pub(crate) told: Value,
    /// Open, or what it prints later would fail.
    rest: Lines<BufReader<ChildStdout>>,
}

impl Served {
    /// Starts it, and waits for its first line.
    pub(crate) async fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // It may start several servers before.
        let line = timeout(3 * PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        Self { child, told: serde_json::from_str(&line).unwrap(), rest: lines }
    }

    /// Its next line, as JSON.
    pub(crate) async fn next(&mut self) -> Value {
        let line = timeout(3 * PATIENCE, self.rest.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// The text of a field that it told.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.told[field].as_str().unwrap()
    }

    /// Ends it by SIGINT, as Ctrl-C does, and returns when it has ended well.
    pub(crate) async fn interrupt(mut self) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        let ended = timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "{ended}");
    }
}

pub(crate) fn ran(output: Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) struct Fails;

#[async_trait]
impl JobHandler for Fails {
    type Data = Value;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: Value) -> Result<(), JobError> {
        Err(JobError::retry("the bank is closed\n\u{1b}[31m"))
    }
}

pub(crate) struct Hangs;

#[async_trait]
impl JobHandler for Hangs {
    type Data = Value;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: Value) -> Result<(), JobError> {
        std::future::pending().await
    }
}

/// Dead letters of the queue `orders` in the queue `dead`: two of ann's, one of bob's.
pub(crate) async fn dead_letters(cli: &Cli) -> [i64; 3] {
    cli.ends(DONE, &["configure", "orders", "--dead-letter-queue", "dead"]).await;
    let mut ids = Vec::new();
    for group in ["ann", "bob", "ann"] {
        ids.push(cli.enqueue(group).await);
    }
    cli.fail(OutOfAttempts::Continue).await;
    ids.try_into().unwrap()
}

/// The answer of a page to a GET of `/`, with these headers.
pub(crate) async fn get(address: &str, headers: &str) -> String {
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

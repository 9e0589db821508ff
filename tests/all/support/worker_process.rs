//! A worker in a process of its own: this test binary, run again.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use seriatim::observe::Watchdog;
use seriatim::{ActiveJob, Hold, JobError, OutOfAttempts, Processor, QueueOptions, RetryPolicy};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::support::witness;
use crate::support::{Log, chain, handler_with, until_ready};

/// The environment variable with the settings of the process.
const VARIABLE: &str = "SERIATIM_TEST_WORKER";
/// The beginning of its messages, among the output of the test harness.
const MARK: &str = "worker: ";

/// A worker's settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub url: String,
    /// Where it connects to for what it does beside its jobs.
    pub outside: String,
    pub queues: Vec<String>,
    pub slots: usize,
    pub attempts: u32,
    pub halt: bool,
    /// Its hold; none: by transactions.
    pub lease: Option<Duration>,
    /// Whether it shows its presence and listens: both need a session of their own.
    pub presence: bool,
    /// The limit of its watchdog; then it is shut down with a deadline of 100 ms and a margin of 1
    /// s.
    pub watchdog: Option<Duration>,
}

impl Settings {
    pub fn new(url: String, queues: &[&str]) -> Self {
        Self {
            outside: url.clone(),
            url,
            queues: queues.iter().map(ToString::to_string).collect(),
            slots: 4,
            attempts: 10,
            halt: false,
            lease: None,
            presence: true,
            watchdog: None,
        }
    }
}

/// The worker, as its parent sees it. It ends with its parent, or when dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    name: String,
    child: Child,
    /// The worker runs as long as it is open. Not in `child`, whose `wait` closes it.
    input: ChildStdin,
}

impl WorkerProcess {
    /// Starts a worker. Its messages go to the log, behind its name.
    pub fn start(name: impl Into<String>, settings: &Settings, log: &Log) -> Self {
        let program = std::env::current_exe().unwrap();
        Self::start_as(name, Command::new(program), settings, log)
    }

    /// As `start`, with a command that runs this test binary.
    pub fn start_as(
        name: impl Into<String>,
        command: Command,
        settings: &Settings,
        log: &Log,
    ) -> Self {
        let settings = serde_json::to_string(settings).unwrap();
        Self::start_at(name, command, "support::worker_process::work", &settings, log)
    }

    /// As `start_as`, for work of another kind: the test that does it, and what it is told.
    pub fn start_at(
        name: impl Into<String>,
        mut command: Command,
        work: &str,
        told: &str,
        log: &Log,
    ) -> Self {
        let name = name.into();
        let mut child = command
            .args(["--exact", work, "--ignored", "--nocapture"])
            .env(VARIABLE, told)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (log, speaker) = (log.clone(), name.clone());
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((_, said)) = line.split_once(MARK) {
                    log.add(format!("{speaker}: {said}"));
                }
            }
        });
        let input = child.stdin.take().unwrap();
        Self { name, child, input }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it claims jobs.
    pub async fn is_ready(&self, log: &Log) {
        let ready = format!("{}: ready", self.name);
        heard(log, |said| said == ready).await;
    }

    /// Sends a signal: `STOP`, `CONT`, …
    pub async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap();
        let sent = Command::new("sh").args(["-c", &format!("kill -s {signal} {pid}")]).status();
        assert!(sent.await.unwrap().success(), "{signal} to {pid}");
    }

    /// SIGKILL: returns when the process is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has ended by itself. Returns its code, if no signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = tokio::time::timeout(Duration::from_mins(1), self.child.wait()).await;
        status.expect("it ends").unwrap().code()
    }

    /// Tells it to end, and waits until it has.
    pub async fn end(self) {
        assert_eq!(self.end_with().await, Some(0));
    }

    /// As `end`. Returns its code.
    pub async fn end_with(mut self) -> Option<i32> {
        drop(self.input);
        let status = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        status.unwrap().unwrap().code()
    }
}

/// Waits until a worker has said what is meant, and returns it.
pub async fn heard(log: &Log, meant: impl Fn(&str) -> bool) -> String {
    let entries = log.wait("a worker says it", |entries| entries.iter().any(|said| meant(said)));
    let found = entries.await.into_iter().find(|said| meant(said));
    found.unwrap()
}

/// An act of `act` below, as its worker announced it.
#[derive(Debug, Clone)]
pub struct Announced {
    pub worker: String,
    pub job: i64,
    /// The session that holds it.
    pub pid: i32,
}

/// Waits until a worker has announced the attempt of the group's job.
pub async fn announced(log: &Log, group: &str, attempt: u32) -> Announced {
    let parse = |said: &str| {
        let (worker, said) = said.split_once(": in ")?;
        let words: Vec<&str> = said.split(' ').collect();
        let meant = words[0] == group && words[2] == attempt.to_string();
        meant.then(|| Announced {
            worker: worker.to_owned(),
            job: words[1].parse().unwrap(),
            pid: words[3].parse().unwrap(),
        })
    };
    let said = heard(log, |said| parse(said).is_some()).await;
    parse(&said).unwrap()
}

pub fn say(what: impl std::fmt::Display) {
    println!("{MARK}{what}");
}

/// Returns what this process was told, or none if it is no worker.
pub fn told<T: serde::de::DeserializeOwned>() -> Option<T> {
    let told = std::env::var(VARIABLE).ok()?;
    Some(serde_json::from_str(&told).unwrap())
}

/// Until our parent closes it, or is gone.
pub async fn input_is_closed() {
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    closed.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker of other tests, which run it in a process of its own"]
async fn work() {
    let Some(settings) = told::<Settings>() else {
        return;
    };
    let slots = settings.slots * settings.queues.len();
    let pool = async |url| {
        PgPoolOptions::new()
            .max_connections(u32::try_from(slots).unwrap())
            .connect(url)
            .await
            .unwrap()
    };
    let outside = pool(&settings.outside).await;
    let hold = settings.lease.map_or(Hold::Transaction, Hold::Lease);
    let mut builder = Processor::builder(pool(&settings.url).await)
        .presence(settings.presence)
        .listen(settings.presence)
        .on_error(|error| say(format!("error: {error:?} {}", chain(error))));
    let retry = RetryPolicy::new(settings.attempts).base(Duration::from_millis(10));
    if let Some(limit) = settings.watchdog {
        log_errors();
        let watchdog = Watchdog::new(limit).shutdown_margin(Duration::from_secs(1));
        builder = builder.watchdog(watchdog);
    }
    for queue in &settings.queues {
        let options = QueueOptions::new(queue)
            .concurrency(settings.slots)
            .retry(retry.clone())
            .hold(hold)
            .out_of_attempts(if settings.halt {
                OutOfAttempts::Halt
            } else {
                OutOfAttempts::Continue
            });
        builder = builder.queue(
            options,
            handler_with(outside.clone(), async |outside, job, data| {
                act(job, &outside, data).await
            }),
        );
    }
    // A machine that is late may give the check at the start no connection in time.
    let running = builder.build().unwrap().start_when_ready();
    until_ready(&running, true).await;
    say("ready");
    input_is_closed().await;
    let deadline = if settings.watchdog.is_some() { 100 } else { 5_000 };
    running.shutdown(Duration::from_millis(deadline)).await;
}

/// Says what goes to the log as an error.
fn log_errors() {
    struct Line;

    impl std::io::Write for Line {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            say(format!("log: {}", String::from_utf8_lossy(line).trim_end()));
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR);
    log.with_ansi(false).with_writer(|| Line).init();
}

/// Does what the data says: a step of the witness, or an act by name. Acts are announced, and are
/// for a first attempt; a later one succeeds at once, unless the act's name says always.
async fn act(job: &mut ActiveJob, outside: &PgPool, data: Value) -> Result<Value, JobError> {
    let Some(act) = data.as_str().map(str::to_owned) else {
        return witness::take_step(job, outside, data).await;
    };
    if act == "wait outside" {
        say(format!("in {} {} {} 0", job.group().unwrap_or("-"), job.id(), job.attempt()));
        if job.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        return Ok(json!(job.attempt()));
    }
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(job.tx().await?).await?;
    let group = job.group().unwrap_or("-");
    say(format!("in {group} {} {} {pid}", job.id(), job.attempt()));
    match act.as_str() {
        "always abort" => std::process::abort(),
        "wait, then write" => {
            if job.attempt() == 1 {
                let_go_on(outside).await?;
            }
            write(job).await?;
        }
        "write, then wait" => {
            write(job).await?;
            if job.attempt() == 1 {
                let_go_on(outside).await?;
            }
        }
        "checkpoint, then hang" if job.attempt() == 1 => {
            job.progress(40, "page 4 of 10")?;
            job.checkpoint(&job.attempt()).await?;
            say("checkpoint kept");
            std::future::pending::<()>().await;
        }
        "checkpoint, then wait" if job.attempt() == 1 => {
            job.checkpoint(&job.attempt()).await?;
            let_go_on(outside).await?;
        }
        "wait, then checkpoint" => {
            let last = job.last_checkpoint::<u32>().await?;
            if job.attempt() == 1 {
                let_go_on(outside).await?;
                // Without the await of its own: the handler is dropped soon.
                let kept = job.checkpoint(&json!("stale")).await;
                say(format!("checkpoint: {kept:?}"));
            }
            job.checkpoint(&job.attempt()).await?;
            return Ok(json!(last));
        }
        "checkpoint, then hang" | "checkpoint, then wait" => {
            return Ok(json!(job.last_checkpoint::<u32>().await?));
        }
        "hang" if job.attempt() == 1 => std::future::pending().await,
        "block" if job.attempt() == 1 => loop {
            // Its thread is what it blocks.
            std::thread::park();
        },
        "query" if job.attempt() == 1 => {
            let query = sqlx::query("select pg_sleep(60)");
            query.execute(job.tx().await?).await?;
        }
        _ => {}
    }
    Ok(json!(job.attempt()))
}

/// Waits until the test lets it go on, which it does by dropping a table.
async fn let_go_on(outside: &PgPool) -> Result<(), JobError> {
    say("waits");
    while sqlx::query_scalar("select to_regclass('public.go_on') is not null")
        .fetch_one(outside)
        .await?
    {
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn write(job: &mut ActiveJob) -> Result<(), JobError> {
    let attempt = i32::try_from(job.attempt()).map_err(JobError::fail)?;
    sqlx::query("insert into public.effect values (pg_backend_pid(), $1)")
        .bind(attempt)
        .execute(job.tx().await?)
        .await?;
    Ok(())
}

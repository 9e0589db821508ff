//! What each peer's recorder does alike: its command line, the workload, and the lines of a
//! history that `docs/history.md` describes. `js/kit.mjs` and `py/sqs.py` do the same.
//!
//! ```text
//! setup   URL
//! produce URL FILE SECONDS RATE GROUPS SEED
//! work    URL FILE NAME SLOTS FAILING GROUPS SEED    prints READY; ends with its standard input
//! ```

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
pub use async_trait::async_trait;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

/// The seconds after which a peer may take over what a worker left, where that can be set.
pub const TIMEOUT: u64 = 5;
/// More than a cell can use up: each job is to succeed in the end.
pub const ATTEMPTS: u32 = 100;
/// Producers in the one process, each with a connection.
const PRODUCERS: u64 = 4;

/// The payload of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub job: String,
    pub group: String,
}

/// A queue whose history is recorded.
#[async_trait]
pub trait Peer: Send + Sync + 'static {
    /// Makes the schema in an empty database.
    async fn setup(&self, url: &str) -> Result<()>;
    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>>;
    /// Works in the background; calls [`ready`] when it has begun. Each job's handler is
    /// [`Handler::run`].
    async fn work(
        &self,
        url: &str,
        slots: usize,
        groups: Vec<String>,
        handler: Handler,
    ) -> Result<()>;
}

#[async_trait]
pub trait Producer: Send + Sync + 'static {
    async fn enqueue(&self, job: &Job) -> Result<()>;
}

/// The clock that all processes of a machine share.
fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

#[derive(Debug, Clone)]
struct Recorder(Arc<Mutex<File>>);

impl Recorder {
    fn open(file: &str) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(file)?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// With one write, so that a process that is killed leaves whole lines.
    fn note(&self, event: &Value) {
        let line = format!("{event}\n");
        let mut file = self.0.lock().expect("no writer panics");
        file.write_all(line.as_bytes()).expect("a history can be written");
    }
}

/// The handler of every job.
#[derive(Debug, Clone)]
pub struct Handler {
    recorder: Recorder,
    process: String,
    failing: f64,
    /// Numbers the runs of this process; `run` makes them attempts of their jobs.
    runs: Arc<AtomicU32>,
}

/// The handler wants to be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the handler failed")
    }
}

impl std::error::Error for Failed {}

/// A run that is on its way. Dropped, the queue has dropped its future.
struct Run<'h> {
    handler: &'h Handler,
    job: &'h str,
    attempt: u32,
    outcome: &'static str,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.handler.recorder.note(&json!({
            "event": "end", "job": self.job, "attempt": self.attempt,
            "process": self.handler.process, "at": now(), "outcome": self.outcome,
        }));
    }
}

impl Handler {
    /// Takes 10 to 200 ms.
    pub async fn run(&self, job: &Job) -> Result<(), Failed> {
        let attempt = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        self.recorder.note(&json!({
            "event": "start", "job": job.job, "attempt": attempt, "process": self.process,
            "at": now(),
        }));
        let mut run = Run { handler: self, job: &job.job, attempt, outcome: "dropped" };
        sleep(Duration::from_micros(fastrand::u64(10_000..200_000))).await;
        let fails = fastrand::f64() < self.failing;
        run.outcome = if fails { "retry" } else { "succeeded" };
        if fails { Err(Failed) } else { Ok(()) }
    }
}

/// The runner waits for this line.
pub fn ready() {
    println!("READY");
}

/// Enqueues bursts of 1 to 5 jobs into groups at random, so that jobs wait behind each other.
async fn produce(
    peer: Arc<dyn Producer>,
    recorder: Recorder,
    [seconds, rate, groups, seed]: [u64; 4],
) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 0..PRODUCERS {
        let (peer, recorder, count) = (Arc::clone(&peer), recorder.clone(), Arc::clone(&count));
        tasks.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed * PRODUCERS + n);
            let mut next = Instant::now();
            while Instant::now() < until {
                let (group, burst) = (format!("g{}", random.u64(0..groups)), random.u64(1..=5));
                for _ in 0..burst {
                    let job = format!("j{}", count.fetch_add(1, Ordering::Relaxed) + 1);
                    let job = Job { job, group: group.clone() };
                    let begin = now();
                    let mut event = json!({
                        "event": "enqueue", "job": job.job, "group": group,
                        "process": format!("p{n}"), "begin": begin, "outcome": "unknown",
                    });
                    recorder.note(&event);
                    match peer.enqueue(&job).await {
                        Ok(()) => {
                            event["end"] = now().into();
                            event["outcome"] = "committed".into();
                            recorder.note(&event);
                        }
                        Err(error) => {
                            eprintln!("enqueue: {error:#}");
                            // The server may be away.
                            sleep(Duration::from_millis(200)).await;
                        }
                    }
                }
                next += Duration::from_secs(1) * u32::try_from(burst * PRODUCERS).unwrap_or(1)
                    / u32::try_from(rate).unwrap_or(1);
                next = next.max(Instant::now());
                sleep_until(next).await;
            }
        }));
    }
    for task in tasks {
        if let Err(error) = task.await {
            eprintln!("producer: {error}");
        }
    }
}

/// The program of a peer, whose variant is the first argument.
pub fn main<P: Peer>(peer: impl FnOnce(&str) -> P) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let run = |runtime: tokio::runtime::Runtime| {
        let variant = args.first().context("which variant?")?;
        runtime.block_on(run(&peer(variant), &args[1..]))
    };
    if let Err(error) = runtime.map_err(anyhow::Error::from).and_then(run) {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

async fn run(peer: &impl Peer, args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["setup", url] => peer.setup(url).await,
        ["produce", url, file, seconds, rate, groups, seed] => {
            let numbers = [seconds.parse()?, rate.parse()?, groups.parse()?, seed.parse()?];
            produce(peer.producer(url).await?, Recorder::open(file)?, numbers).await;
            Ok(())
        }
        ["work", url, file, name, slots, failing, groups, seed] => {
            fastrand::seed(seed.parse()?);
            // Its parent may be gone.
            std::thread::spawn(|| {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                std::process::exit(0);
            });
            let handler = Handler {
                recorder: Recorder::open(file)?,
                process: name.to_owned(),
                failing: failing.parse()?,
                runs: Arc::default(),
            };
            let groups = (0..groups.parse::<u64>()?).map(|n| format!("g{n}")).collect();
            peer.work(url, slots.parse()?, groups, handler).await?;
            std::future::pending().await
        }
        _ => bail!("setup | produce | work, with their arguments"),
    }
}

//! The worker processes (this program again, once for each), and the kills.

use std::collections::HashMap;
use std::io::Read as _;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::{OutOfAttempts, Processor, QueueOptions, RetryPolicy};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::files::Apply;
use crate::{QUEUE, Result};

const KILL_EVERY: Duration = Duration::from_millis(500);
/// Interval of checks whether a worker has ended by itself.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The arguments of a worker process.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    name: String,
    #[arg(long)]
    concurrency: u32,
    /// Report every job, not the first one only.
    #[arg(long)]
    tell_all: bool,
}

/// A worker process: one processor, until the parent closes this standard input, on purpose or by
/// its own end.
pub(crate) async fn work(args: WorkerArgs) -> Result<()> {
    let url = std::env::var("DATABASE_URL")?;
    let pool = PgPoolOptions::new().max_connections(args.concurrency).connect(&url).await?;
    let options = QueueOptions::new(QUEUE)
        .concurrency(args.concurrency.try_into()?)
        // A killed worker costs its jobs an attempt. A change that is out of order is not tried
        // again anyway.
        .retry(RetryPolicy::new(1_000).base(Duration::from_millis(20)))
        // The later changes of the path would only fail after it.
        .out_of_attempts(OutOfAttempts::Halt);
    let handler =
        Apply { worker: args.name, tell_all: args.tell_all, told: AtomicBool::new(false) };
    let running = Processor::builder(pool).queue(options, handler).build()?.start_when_ready();
    // The parent writes nothing: the read returns when the other end is closed.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
    // Not for long: if the parent died, its server may be gone as well.
    let _ = timeout(Duration::from_secs(2), running.shutdown(Duration::from_secs(1))).await;
    Ok(())
}

/// A kill, by the database's clock.
#[derive(Debug, Clone)]
pub(crate) struct Kill {
    pub(crate) worker: String,
    pub(crate) at: DateTime<Utc>,
}

pub(crate) struct Fleet {
    url: String,
    concurrency: u32,
    tell_all: bool,
    workers: Vec<Worker>,
    started: usize,
    any_at_work: bool,
    told: mpsc::UnboundedReceiver<Told>,
    tell: mpsc::UnboundedSender<Told>,
    /// Returns the worker of an attempt of a job, as far as workers reported.
    pub(crate) runs: HashMap<(i64, u32), String>,
    pub(crate) kills: Vec<Kill>,
}

struct Worker {
    name: String,
    process: Child,
    /// It has begun a job. The kill of one that has not shows nothing, and on a slow machine none
    /// would ever begin one.
    at_work: bool,
}

/// A report that a worker began a job.
struct Told {
    worker: String,
    job: i64,
    attempt: u32,
}

impl Fleet {
    pub(crate) fn start(
        url: String,
        size: usize,
        concurrency: u32,
        tell_all: bool,
    ) -> Result<Self> {
        let (tell, told) = mpsc::unbounded_channel();
        let mut fleet = Self {
            url,
            concurrency,
            tell_all,
            workers: Vec::new(),
            started: 0,
            any_at_work: false,
            told,
            tell,
            runs: HashMap::new(),
            kills: Vec::new(),
        };
        for _ in 0..size {
            fleet.start_worker()?;
        }
        Ok(fleet)
    }

    fn start_worker(&mut self) -> Result<()> {
        self.started += 1;
        let name = format!("W{}", self.started);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").args(["--name", &name]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        if self.tell_all {
            command.arg("--tell-all");
        }
        let mut process = command
            // Not as an argument: every user can read those, and a URL may have a password.
            .env("DATABASE_URL", &self.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent alone, which then ends the workers in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        if let Some(stdout) = process.stdout.take() {
            tokio::spawn(listen(name.clone(), stdout, self.tell.clone()));
        }
        self.workers.push(Worker { name, process, at_work: false });
        Ok(())
    }

    /// Watches the workers, and kills them in chaos mode. Returns only an error.
    pub(crate) async fn watch(
        &mut self,
        chaos: Option<&PgPool>,
    ) -> Result<std::convert::Infallible> {
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut kill = interval(KILL_EVERY);
        kill.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(told) = self.told.recv() => {
                    let first = self.note(told);
                    // A short history would be over before its first kill.
                    if let Some(pool) = chaos && first {
                        self.kill_one(pool).await?;
                        kill.reset();
                    }
                }
                _ = checks.tick() => self.check()?,
                _ = kill.tick() => if let Some(pool) = chaos {
                    self.kill_one(pool).await?;
                }
            }
        }
    }

    /// Returns whether it is the first job that any worker began.
    fn note(&mut self, told: Told) -> bool {
        let first = !std::mem::replace(&mut self.any_at_work, true);
        let its = |worker: &&mut Worker| worker.name == told.worker;
        if let Some(worker) = self.workers.iter_mut().find(its) {
            worker.at_work = true;
        }
        if self.tell_all {
            self.runs.insert((told.job, told.attempt), told.worker);
        }
        first
    }

    /// Fails if a worker ended by itself: the wait for it would never end.
    fn check(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            if let Some(status) = worker.process.try_wait()? {
                return Err(ended(&worker.name, status).into());
            }
        }
        Ok(())
    }

    /// Kills one of the workers that have begun to work, if any, and starts another.
    async fn kill_one(&mut self, pool: &PgPool) -> Result<()> {
        let workers = self.workers.iter().enumerate();
        let at_work = workers.filter_map(|(place, worker)| worker.at_work.then_some(place));
        let Some(victim) = fastrand::choice(at_work.collect::<Vec<_>>()) else {
            return Ok(());
        };
        let mut worker = self.workers.swap_remove(victim);
        // SIGKILL: no code of the worker runs any more.
        worker.process.kill().await?;
        let at = sqlx::query_scalar("select clock_timestamp()").fetch_one(pool).await?;
        self.kills.push(Kill { worker: worker.name, at });
        self.start_worker()
    }

    /// Lets the workers end in order. Kills those that do not.
    pub(crate) async fn end(&mut self) {
        for worker in &mut self.workers {
            drop(worker.process.stdin.take());
        }
        for worker in &mut self.workers {
            if timeout(Duration::from_secs(4), worker.process.wait()).await.is_err() {
                // The only error is that it has ended meanwhile.
                let _ = worker.process.kill().await;
            }
        }
        while let Ok(told) = self.told.try_recv() {
            self.note(told);
        }
    }
}

fn ended(name: &str, status: ExitStatus) -> String {
    format!("worker process {name} ended by itself ({status}); what it said is above")
}

/// Reads a worker's lines: a job's id and its attempt.
async fn listen(worker: String, stdout: ChildStdout, tell: mpsc::UnboundedSender<Told>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((Ok(job), Ok(attempt))) =
            line.split_once(' ').map(|(job, attempt)| (job.parse(), attempt.parse()))
        else {
            continue;
        };
        let worker = worker.clone();
        // At the end of the run nothing receives them.
        let _ = tell.send(Told { worker, job, attempt });
    }
}

//! This program once more, as a processor and nothing else: its memory is a worker's.

use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Result;
use crate::backlog::Groups;
use crate::figures::percentile;
use crate::handler::{self, Shown};
use crate::scene::{self, Scene};
use crate::settings::Way;

/// The orders of the process, and the name of the variable that carries them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Told {
    way: Way,
    groups: u32,
    /// The producers' clock, from which the process counts its delays.
    clock: Duration,
}

const TOLD: &str = "SERIATIM_BENCH_PROCESS";

/// The answer of the process: counts since its start, delays since the last answer.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) finished: u64,
    pub(crate) repeated: u64,
    /// From before the enqueue to the handler's first line, in microseconds.
    pub(crate) p50: Option<u64>,
    pub(crate) p99: Option<u64>,
}

pub(crate) struct Process {
    child: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// Returns a command that runs this program again.
pub(crate) fn itself() -> Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

impl Process {
    pub(crate) fn start(
        mut command: Command,
        scene: &Scene,
        way: Way,
        groups: u32,
    ) -> Result<Self> {
        let told = Told { way, groups, clock: handler::zero() };
        let mut child = command
            .env(TOLD, serde_json::to_string(&told)?)
            .env("DATABASE_URL", scene.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let asks = child.stdin.take().ok_or("the process has no standard input")?;
        let answers = child.stdout.take().ok_or("the process has no standard output")?;
        Ok(Self { child, asks, answers: BufReader::new(answers).lines() })
    }

    /// Asks the process for its counts.
    pub(crate) async fn seen(&mut self) -> Result<Seen> {
        self.asks.write_all(b"\n").await?;
        answer(&mut self.answers).await
    }

    /// Ends the process and returns its counts. Returns an error if it saw jobs out of order.
    pub(crate) async fn end(self) -> Result<Seen> {
        let Self { mut child, asks, mut answers } = self;
        drop(asks);
        let seen = answer(&mut answers).await;
        let status = child.wait().await?;
        if !status.success() {
            return Err(format!("the processor's process ended with {status}").into());
        }
        seen
    }

    /// Returns a value of its status in kilobytes. Only Linux has it.
    pub(crate) fn kilobytes(&self, name: &str) -> Option<u64> {
        kilobytes(self.child.id()?, name)
    }
}

/// Returns a value of a process's status.
pub(crate) fn kilobytes(process: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| *found == name)?;
    value.split_whitespace().next()?.parse().ok()
}

/// Returns the next line that is an answer: a test harness around the process may print lines too.
async fn answer(answers: &mut Lines<BufReader<ChildStdout>>) -> Result<Seen> {
    while let Some(line) = answers.next_line().await? {
        if let Some(at) = line.find('{') {
            return Ok(serde_json::from_str(&line[at..])?);
        }
    }
    Err("the processor's process has no more to say".into())
}

/// Returns the orders of this process, if it is only a processor.
pub(crate) fn told() -> Result<Option<Told>> {
    match std::env::var(TOLD) {
        Ok(told) => Ok(Some(serde_json::from_str(&told)?)),
        Err(_) => Ok(None),
    }
}

/// The main function of [`Process::start`]'s process: works, and answers each line of standard
/// input, until that is closed.
pub(crate) async fn work(told: Told) -> Result<()> {
    handler::counts_from(told.clock);
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(told.way.connections());
    let pool = pool.connect(&std::env::var("DATABASE_URL")?).await?;
    let shown = Shown::to(Groups::Even(told.groups).witness(0), 0);
    let running = scene::start(pool, told.way, std::sync::Arc::clone(&shown)).await?;
    let asked = std::sync::Arc::clone(&shown);
    let answers = move || std::io::stdin().lines().try_for_each(|ask| ask.map(|_| say(&asked))?);
    tokio::task::spawn_blocking(answers).await??;
    running.shutdown(Duration::from_secs(20)).await;
    shown.witness.verdict()?;
    say(&shown)
}

fn say(shown: &Shown) -> Result<()> {
    // Taken, not read: values kept for each job would grow for as long as the process runs.
    let mut delays = shown.take_delays();
    let seen = Seen {
        finished: shown.witness.finished(),
        repeated: shown.witness.repeated(),
        p50: percentile(&mut delays, 500),
        p99: percentile(&mut delays, 990),
    };
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

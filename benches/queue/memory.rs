//! What a processor's process has in memory, at work on a deep backlog with 64 slots.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::float;
use crate::handler::Shown;
use crate::report::Row;
use crate::scene::{self, Scene};
use crate::settings::Way;

const GROUPS: Groups = Groups::Even(10_000);
const SLOTS: usize = 64;
const LOOK: Duration = Duration::from_millis(50);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let backlog = bench.sizes.memory;
    for way in bench.ways.clone() {
        let way = way.with_concurrency(SLOTS);
        bench.step(&format!("{way}, backlog {backlog}"));
        let scene = Scene::new(&bench.server).await?;
        scene.load(GROUPS, backlog).await?;
        let mut process = spawn(&scene, way)?;
        let end = Instant::now() + bench.sizes.time;
        let mut most = None;
        while Instant::now() < end {
            most = most.max(resident_kb(process.id()));
            sleep(LOOK).await;
        }
        drop(process.stdin.take());
        let mut ran = String::new();
        if let Some(mut stdout) = process.stdout.take() {
            stdout.read_to_string(&mut ran).await?;
        }
        let status = process.wait().await?;
        if !status.success() {
            return Err(format!("the processor's process ended with {status}").into());
        }
        let (ran, left): (u64, u64) = (ran.trim().parse()?, scene.unfinished().await?);
        if ran + left != u64::from(backlog) {
            return Err(format!("of {backlog} jobs {ran} ran and {left} are left").into());
        }
        scene.remove().await?;
        bench.report.row(
            Row::new("memory")
                .way(way)
                .say("backlog", backlog)
                .figure("jobs run", float(ran))
                .figure("peak RSS MB", most.map_or(f64::NAN, |kb| float(kb) / 1024.0)),
        );
    }
    Ok(())
}

/// This program again, as nothing but a processor.
fn spawn(scene: &Scene, way: Way) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--process");
    for (name, value) in way.arguments() {
        command.args([name, &value]);
    }
    Ok(command
        .env("DATABASE_URL", scene.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?)
}

/// What [`spawn`] starts: works until standard input is closed, and says how many jobs ran.
pub(crate) async fn process(way: Way) -> Result<()> {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(way.connections());
    let pool = pool.connect(&std::env::var("DATABASE_URL")?).await?;
    let shown = Shown::to(GROUPS.witness(0), 0);
    let running = scene::start(pool, way, std::sync::Arc::clone(&shown))?;
    // Nothing ever comes: the read returns when the other end is closed.
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
    running.shutdown(Duration::from_secs(20)).await;
    shown.witness.verdict()?;
    println!("{}", shown.witness.finished());
    Ok(())
}

/// Only Linux says it in this way.
fn resident_kb(process: Option<u32>) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process?)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

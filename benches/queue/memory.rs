//! Memory of a processor's process, at work on a deep backlog with 64 slots.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::float;
use crate::process::{Process, itself};
use crate::report::Row;
use crate::scene::Scene;

const GROUPS: u32 = 10_000;
const SLOTS: usize = 64;
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let backlog = bench.sizes.memory;
    for way in bench.ways.clone() {
        let way = way.with_concurrency(SLOTS);
        bench.step(&format!("{way}, backlog {backlog}"));
        let scene = Scene::new(&bench.server).await?;
        scene.load(Groups::Even(GROUPS), backlog).await?;
        let process = Process::start(itself()?, &scene, way, GROUPS)?;
        let end = Instant::now() + bench.sizes.time;
        let mut most = None;
        while Instant::now() < end {
            most = most.max(process.kilobytes("VmHWM"));
            sleep(INTERVAL).await;
        }
        let (ran, left) = (process.end().await?.finished, scene.unfinished().await?);
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

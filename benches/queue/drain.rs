//! A processor alone, over a backlog.

use std::time::Duration;

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::median;
use crate::handler::Shown;
use crate::report::{Basis, Row};
use crate::scene::Scene;
use crate::settings::Way;
use crate::work::{Measured, Work};

/// A small backlog is drained in a moment. It is drained so many times, and the median counts.
const SMALL: (u32, usize) = (10_000, 5);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        for groups in bench.sizes.groups.clone() {
            for backlog in bench.sizes.backlogs.clone() {
                if matches!(groups, Groups::Even(groups) if groups > backlog) {
                    continue;
                }
                bench.step(&format!("{way}, {} groups, backlog {backlog}", groups.name()));
                let scene = Scene::new(&bench.server).await?;
                let times = if backlog < SMALL.0 { SMALL.1 } else { 1 };
                let mut rates = Vec::new();
                for _ in 0..times {
                    let time = bench.sizes.time;
                    let drained = drain(&scene, way, groups, backlog, time, bench.work).await?;
                    rates.push(drained.rate());
                    // Jobs that are left would come first in the next round, whose witness does not
                    // know them.
                    if drained.jobs < backlog.into() {
                        break;
                    }
                }
                scene.remove().await?;
                bench.report.row(
                    Row::new("drain")
                        .way(way)
                        .say("groups", groups.name())
                        .say("backlog", backlog)
                        .rate("jobs/s", median(&mut rates), Basis::Eight),
                );
            }
        }
    }
    Ok(())
}

/// Loads a backlog and drains it, for at most `cap`.
async fn drain(
    scene: &Scene,
    way: Way,
    groups: Groups,
    backlog: u32,
    cap: Duration,
    work: u64,
) -> Result<Measured> {
    scene.load(groups, backlog).await?;
    let before = scene.unfinished().await?;
    let shown = Shown::to(groups.witness(backlog), work);
    let running = Work::start(scene, way, &shown).await?;
    let measured = running.until(backlog.into(), cap).await?;
    running.end(scene, before).await?;
    Ok(measured)
}

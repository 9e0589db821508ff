//! A processor alone, over a backlog.

use std::sync::Arc;
use std::time::Duration;

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::{float, median};
use crate::handler::Shown;
use crate::report::{Basis, Row};
use crate::scene::Scene;
use crate::settings::Way;
use crate::work::{Measured, Work};

/// A small backlog is drained in a moment. It is drained so many times, and the median counts.
const SMALL: (u32, usize) = (10_000, 5);

/// The groups of a backlog whose handlers take time.
const WORKED: Groups = Groups::Even(100);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for work in bench.sizes.work.clone() {
        if work > 0 {
            worked(bench, work).await?;
        } else {
            empty(bench).await?;
        }
    }
    Ok(())
}

/// Handlers that do nothing.
async fn empty(bench: &mut Bench) -> Result<()> {
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
                    let shown = Shown::to(groups.witness(backlog), 0);
                    let drained = drain(&scene, way, groups, backlog, time, &shown).await?;
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

/// Handlers that take time: what a slot loses beside them.
async fn worked(bench: &mut Bench, work: u64) -> Result<()> {
    for way in bench.work_ways.clone() {
        bench.step(&format!("{way}, handlers of {work} us"));
        let scene = Scene::new(&bench.server).await?;
        let jobs = bench.sizes.worked;
        let shown = Shown::to(WORKED.witness(jobs), work);
        let drained = drain(&scene, way, WORKED, jobs, bench.sizes.time * 2, &shown).await?;
        scene.remove().await?;
        let ended = float(shown.witness.finished().max(1));
        let handler = float(shown.took()) / ended / 1e3;
        let slots = float(u64::try_from(way.concurrency)?);
        bench.report.row(
            Row::new("drain")
                .way(way)
                .say("work us", work)
                .rate("jobs/s", drained.rate(), Basis::Eight)
                .figure("handler ms", handler)
                // The part of a slot's cycle that is not its handler.
                .figure("lost ms", slots * 1e3 / drained.rate() - handler),
        );
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
    shown: &Arc<Shown>,
) -> Result<Measured> {
    scene.load(groups, backlog).await?;
    let before = scene.unfinished().await?;
    let running = Work::start(scene, way, shown).await?;
    let measured = running.until(backlog.into(), cap).await?;
    running.end(scene, before).await?;
    Ok(measured)
}

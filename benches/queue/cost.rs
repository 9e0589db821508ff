//! Cost of a job on the server, enqueue and drain apart.

use std::time::Duration;

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::counters::Counters;
use crate::figures::float;
use crate::handler::Shown;
use crate::produce::Producers;
use crate::report::Row;
use crate::scene::{QUEUE, Scene};
use crate::statements;
use crate::work::Work;

/// A drain that did not end would share the cost of the groups among too few jobs; slow machines
/// need long.
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    statements::counting(true);
    let measured = measure(bench).await;
    statements::counting(false);
    measured
}

async fn measure(bench: &mut Bench) -> Result<()> {
    let jobs = bench.sizes.cost;
    let even = Groups::Even(jobs / 2);
    for batch in [1, 100] {
        bench.step(&format!("enqueue, batches of {batch}"));
        let scene = Scene::new(&bench.server).await?;
        scene.tidy().await?;
        let before = Counters::read(scene.pool()).await?;
        let time = bench.sizes.time;
        let producers = Producers { queue: QUEUE, count: 1, batch, groups: even, rate: None, time };
        let produced = producers.run(&scene).await?;
        let after = Counters::read(scene.pool()).await?;
        scene.remove().await?;
        let row = Row::new("cost").say("what", format!("enqueue, batches of {batch}"));
        bench.report.row(after.since(before, float(produced.jobs), row));
    }
    for way in bench.ways.clone() {
        for groups in [Groups::Plain, even] {
            bench.step(&format!("{way}, drain, {} groups", groups.name()));
            let scene = Scene::new(&bench.server).await?;
            scene.load(groups, jobs).await?;
            let before = Counters::read(scene.pool()).await?;
            let shown = Shown::to(groups.witness(jobs), bench.work);
            let work = Work::start(&scene, way, &shown).await?;
            work.until(jobs.into(), PATIENCE).await?;
            work.end(&scene, jobs.into()).await?;
            let after = Counters::read(scene.pool()).await?;
            scene.remove().await?;
            let ran = float(shown.witness.finished());
            let what = format!("drain, {} groups, {way}", groups.name());
            bench.report.row(after.since(before, ran, Row::new("cost").say("what", what)));
        }
    }
    Ok(())
}

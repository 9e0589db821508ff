//! Producers and a processor together.

use std::time::Duration;

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::rate;
use crate::handler::Shown;
use crate::produce::Producers;
use crate::report::{Basis, Row};
use crate::scene::{QUEUE, Scene};
use crate::work::Work;

const PRODUCERS: u32 = 4;
const GROUPS: Groups = Groups::Even(1_000);

/// Limit of the time for the jobs that the producers leave.
const REST: Duration = Duration::from_mins(1);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        bench.step(&format!("{way}"));
        let scene = Scene::new(&bench.server).await?;
        let shown = Shown::to(GROUPS.witness(0), bench.work);
        let work = Work::start(&scene, way, &shown).await?;
        let time = bench.sizes.time;
        let producers = Producers {
            queue: QUEUE,
            count: PRODUCERS,
            batch: 1,
            groups: GROUPS,
            rate: None,
            time,
        };
        let produced = producers.run(&scene).await?;
        let done = shown.witness.finished();
        work.until(produced.jobs, time + REST).await?;
        work.end(&scene, produced.jobs).await?;
        scene.remove().await?;
        bench.report.row(
            Row::new("mixed")
                .way(way)
                .say("producers", PRODUCERS)
                .figure("enqueued/s", produced.rate())
                .rate("jobs/s", rate(done, produced.time), Basis::Eight),
        );
    }
    Ok(())
}

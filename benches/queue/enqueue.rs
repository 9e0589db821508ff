//! Producers alone.

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::produce::Producers;
use crate::report::{Basis, Row};
use crate::scene::{QUEUE, Scene};

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for groups in [Groups::Plain, Groups::Even(1_000)] {
        for producers in [1, 8] {
            for batch in [1, 100] {
                bench.step(&format!("{producers} producers, batches of {batch}"));
                let scene = Scene::new(&bench.server).await?;
                let time = bench.sizes.time;
                let all =
                    Producers { queue: QUEUE, count: producers, batch, groups, rate: None, time };
                let produced = all.run(&scene).await?;
                let written = scene.unfinished().await?;
                if written != produced.jobs {
                    let answered = produced.jobs;
                    return Err(format!("{answered} jobs were enqueued, {written} exist").into());
                }
                scene.remove().await?;
                let basis = match (producers, batch) {
                    (_, 100) => Basis::Batches,
                    (1, _) => Basis::One,
                    _ => Basis::Eight,
                };
                bench.report.row(
                    Row::new("enqueue")
                        .say("groups", groups.name())
                        .say("producers", producers)
                        .say("batch", batch)
                        .rate("jobs/s", produced.rate(), basis),
                );
            }
        }
    }
    Ok(())
}

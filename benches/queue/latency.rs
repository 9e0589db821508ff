//! From an enqueue to its handler, at a steady rate.

use std::time::Duration;

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::{float, percentile};
use crate::handler::{Shown, now};
use crate::produce::Producers;
use crate::report::Row;
use crate::scene::{QUEUE, Scene};
use crate::work::Work;

const GROUPS: Groups = Groups::Even(1_000);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        for (rate, producers) in [(50, 1), (500, 2)] {
            bench.step(&format!("{way}, {rate} jobs/s"));
            let scene = Scene::new(&bench.server).await?;
            let shown = Shown::to(GROUPS.witness(0), bench.work);
            let work = Work::start(&scene, way, &shown).await?;
            // The first second is for connections and plans.
            let time = Duration::from_secs(1) + bench.sizes.time * 3;
            let producers = Producers {
                queue: QUEUE,
                count: producers,
                batch: 1,
                groups: GROUPS,
                rate: Some(rate),
                time,
            };
            let begin = now();
            let produced = producers.run(&scene).await?;
            work.until(produced.jobs, time + Duration::from_secs(20)).await?;
            work.end(&scene, produced.jobs).await?;
            scene.remove().await?;
            let mut delays = shown.delays(begin + 1_000_000);
            let mut ms =
                |share| percentile(&mut delays, share).map_or(f64::NAN, |us| float(us) / 1e3);
            let (p50, p95, p99, most) = (ms(500), ms(950), ms(990), ms(1000));
            bench.report.row(
                Row::new("latency")
                    .way(way)
                    .say("jobs/s", rate)
                    // Less than that: the producers could not keep up, and the delays are those of
                    // an overload.
                    .figure("came", produced.rate())
                    .figure("p50 ms", p50)
                    .figure("p95 ms", p95)
                    .figure("p99 ms", p99)
                    .figure("max ms", most),
            );
        }
    }
    Ok(())
}

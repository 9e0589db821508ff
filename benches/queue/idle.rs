//! Cost of a processor without work, per second and queue.

use std::time::{Duration, Instant};

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::counters::Counters;
use crate::handler::Shown;
use crate::report::Row;
use crate::scene::Scene;
use crate::statements;
use crate::work::Work;

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    statements::counting(true);
    let measured = measure(bench).await;
    statements::counting(false);
    measured
}

async fn measure(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        bench.step(&format!("{way}"));
        let scene = Scene::new(&bench.server).await?;
        let shown = Shown::to(Groups::Even(1).witness(0), 0);
        let work = Work::start(&scene, way, &shown).await?;
        // The processor announces itself and polls all its queues for the first time.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = Counters::read(scene.pool()).await?;
        let began = Instant::now();
        tokio::time::sleep(bench.sizes.idle).await;
        let after = Counters::read(scene.pool()).await?;
        let seconds = began.elapsed().as_secs_f64();
        work.end(&scene, 0).await?;
        scene.remove().await?;
        bench.report.row(after.since(before, seconds, Row::new("idle").way(way)));
    }
    Ok(())
}

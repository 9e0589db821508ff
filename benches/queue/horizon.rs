//! Drains while another session pins vacuum's horizon: no dead row is removed, in the whole
//! database.

use std::time::Duration;

use sqlx::{Connection, Executor};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::backlog::Groups;
use crate::bench::Bench;
use crate::figures::ends;
use crate::handler::Shown;
use crate::report::{Basis, Row};
use crate::scene::Scene;
use crate::settings::Way;
use crate::work::Work;

/// Many groups with a turn now and then, and few groups whose rows die with each of many turns.
const GROUPS: [u32; 2] = [10_000, 10];
/// Number of jobs that are added when fewer wait.
const CHUNK: u32 = 50_000;
/// The first and the last seconds of a run that are compared.
const WINDOW: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        for groups in GROUPS {
            let mut unpinned = None;
            for pinned in [false, true] {
                let time = bench.sizes.pinned;
                let seconds = time.as_secs();
                bench.step(&format!("{way}, {groups} groups, pinned: {pinned}, {seconds} s"));
                let (first, last) = stream(bench, way, groups, pinned, time).await?;
                let against = *unpinned.get_or_insert(last);
                bench.report.row(
                    Row::new("horizon")
                        .way(way)
                        .say("groups", groups)
                        .say("pinned", pinned)
                        .say("seconds", seconds)
                        .figure("first jobs/s", first)
                        .rate("last jobs/s", last, Basis::Eight)
                        .figure("to unpinned", last / against),
                );
            }
        }
    }
    Ok(())
}

/// Returns the rates of the first and of the last seconds of a stream of jobs.
async fn stream(
    bench: &Bench,
    way: Way,
    groups: u32,
    pinned: bool,
    time: Duration,
) -> Result<(f64, f64)> {
    let scene = Scene::new(&bench.server).await?;
    let groups = Groups::Even(groups);
    let mut loaded = 2 * CHUNK;
    scene.load(groups, loaded).await?;
    let mut session = sqlx::PgConnection::connect(&scene.url()).await?;
    if pinned {
        session.execute("begin isolation level repeatable read").await?;
        session.execute("select pg_current_xact_id()").await?;
    }
    let shown = Shown::to(groups.witness(0), bench.work);
    let work = Work::start(&scene, way, &shown).await?;
    work.until(1, Duration::from_mins(1)).await?;

    let began = Instant::now();
    let mut samples = vec![(Duration::ZERO, shown.witness.finished())];
    while began.elapsed() < time {
        let finished = shown.witness.finished();
        if u64::from(loaded) - finished < u64::from(2 * CHUNK) {
            scene.add(groups, loaded, loaded + CHUNK, loaded).await?;
            loaded += CHUNK;
        }
        samples.push((began.elapsed(), shown.witness.finished()));
        sleep(INTERVAL).await;
    }
    work.end(&scene, loaded.into()).await?;
    session.close().await?;
    scene.remove().await?;
    Ok(ends(&samples, WINDOW.min(time / 3)))
}

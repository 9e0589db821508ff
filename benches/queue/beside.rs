//! Loss of a drain of some groups beside others: a deep one, many that are not due, many that
//! others hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use seriatim::{ActiveJob, JobError, JobHandler, Running, async_trait};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::backlog::{Groups, LOAD_DELAYED, LOAD_HELD};
use crate::bench::Bench;
use crate::handler::Shown;
use crate::report::{Basis, Row};
use crate::scene::Scene;
use crate::settings::Way;
use crate::witness::Job;
use crate::work::Work;

/// The number of groups that are ready, and of all their jobs.
const READY: (u32, u32) = (100, 100_000);

/// One group has half of all jobs, against as many jobs in equal groups.
pub(crate) async fn skew(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        let mut even = None;
        for groups in [Groups::Even(1_000), Groups::Skewed(1_000)] {
            bench.step(&format!("{way}, {groups:?}"));
            let scene = Scene::new(&bench.server).await?;
            scene.load(groups, READY.1).await?;
            let shown = Shown::to(groups.witness(0), bench.work);
            let work = Work::start(&scene, way, &shown).await?;
            // After that only the deep group is left, which `drain` with one group measures.
            let until = u64::from(READY.1) / 20 * 9;
            let rate = work.until(until, bench.sizes.time).await?.rate();
            work.end(&scene, READY.1.into()).await?;
            scene.remove().await?;
            let row = Row::new("skew").way(way).say("deep group", groups == Groups::Skewed(1_000));
            bench.report.row(against(row, rate, &mut even));
        }
    }
    Ok(())
}

/// Groups that are not due, against none.
pub(crate) async fn delayed(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        let mut alone = None;
        for delayed in [0, bench.sizes.delayed] {
            bench.step(&format!("{way}, {delayed} groups not due"));
            let scene = Scene::new(&bench.server).await?;
            scene.add_groups(LOAD_DELAYED, delayed).await?;
            let rate = ready(bench, &scene, way).await?;
            scene.remove().await?;
            let row = Row::new("delayed").way(way).say("not due", delayed);
            bench.report.row(against(row, rate, &mut alone));
        }
    }
    Ok(())
}

/// Groups that another processor holds, in the same way, against none.
pub(crate) async fn busy(bench: &mut Bench) -> Result<()> {
    for way in bench.ways.clone() {
        let mut alone = None;
        for held in [0, bench.sizes.held] {
            bench.step(&format!("{way}, {held} groups held"));
            let scene = Scene::new(&bench.server).await?;
            let other = if held > 0 { Some(hold(&scene, way, held).await?) } else { None };
            let rate = ready(bench, &scene, way).await?;
            if let Some(other) = other {
                other.shutdown(Duration::ZERO).await;
            }
            scene.remove().await?;
            let row = Row::new("busy").way(way).say("held", held);
            bench.report.row(against(row, rate, &mut alone));
        }
    }
    Ok(())
}

/// Drains groups that are ready, beside the others.
async fn ready(bench: &Bench, scene: &Scene, way: Way) -> Result<f64> {
    let groups = Groups::Even(READY.0);
    scene.load(groups, READY.1).await?;
    let before = scene.unfinished().await?;
    let shown = Shown::to(groups.witness(0), bench.work);
    let work = Work::start(scene, way, &shown).await?;
    let measured = work.until(READY.1.into(), bench.sizes.time).await?;
    work.end(scene, before).await?;
    Ok(measured.rate())
}

/// Adds the figures of a row, each but the first also as a ratio to the first.
fn against(row: Row, rate: f64, first: &mut Option<f64>) -> Row {
    let ratio = rate / *first.get_or_insert(rate);
    row.rate("jobs/s", rate, Basis::Eight).figure("to without", ratio)
}

/// A handler that never ends, and counts its starts.
#[derive(Debug, Default)]
struct Stay {
    began: AtomicU32,
}

#[async_trait]
impl JobHandler for Stay {
    type Data = Job;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, _: Job) -> Result<(), JobError> {
        self.began.fetch_add(1, Ordering::SeqCst);
        job.cancelled().await;
        Err(JobError::retry("released"))
    }
}

/// Starts a processor that holds `held` groups until it is shut down.
async fn hold(scene: &Scene, way: Way, held: u32) -> Result<Running> {
    scene.add_groups(LOAD_HELD, held).await?;
    let stay = Arc::new(Stay::default());
    let other = scene.start(way.with_concurrency(held as usize), Arc::clone(&stay)).await?;
    let began = Instant::now();
    while stay.began.load(Ordering::SeqCst) < held {
        if began.elapsed() > Duration::from_mins(1) {
            let have = stay.began.load(Ordering::SeqCst);
            return Err(format!("of {held} groups only {have} are held after a minute").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(other)
}

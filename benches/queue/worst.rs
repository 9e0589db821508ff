//! A job in an idle group, due at once and with slots free, behind the worst that the tables may
//! have: how long until its handler begins?
//!
//! The queue is paused while the backlog is loaded, so that all of it is there when the job comes.
//! Its commit ends the pause as well.

use std::sync::Arc;
use std::time::Duration;

use seriatim::testing::Server;
use seriatim::{Client, NewJob};
use sqlx::{Connection, Executor};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::bench::Bench;
use crate::figures::{float, median};
use crate::handler::now;
use crate::report::Row;
use crate::scene::{QUEUE, Scene};
use crate::settings::Sizes;
use crate::taker::{By, Starts, Taker};
use crate::witness::Job;
use crate::worst_cases::Case;

const SLOTS: usize = 4;
/// Jobs of one more idle group, after the tries: their rate.
const QUICK: u32 = 40;
/// For connections and plans.
const START: Duration = Duration::from_secs(1);
/// The jobs of a pinned horizon that are compared: the first, and the last.
const COMPARED: usize = 100;
/// For a settle, before the next job of a group that is to drain.
const SETTLE: Duration = Duration::from_millis(5);

/// The delays of some jobs, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) tries: usize,
    pub(crate) delays: Vec<f64>,
    pub(crate) rate: f64,
}

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let ways = bench.ways.iter().map(|way| By::Processor(way.with_concurrency(SLOTS)));
    let takers: Vec<By> = ways.chain([By::Receiver]).collect();
    for jobs in bench.sizes.ahead.clone() {
        for case in Case::ALL {
            for &by in &takers {
                bench.step(&format!("{}, {}, {jobs} jobs", by.name(), case.name()));
                let seen = wait_behind(&bench.server, &bench.sizes, by, case, jobs).await?;
                row(bench, by, case.name(), jobs, seen);
            }
        }
    }
    for by in takers {
        let jobs = bench.sizes.drains;
        bench.step(&format!("{}, pinned horizon, {jobs} jobs", by.name()));
        let [first, last] = drain_pinned(&bench.server, &bench.sizes, by, jobs).await?;
        row(bench, by, "pinned, first", jobs, first);
        row(bench, by, "pinned, last", jobs, last);
    }
    Ok(())
}

fn row(bench: &mut Bench, by: By, case: &'static str, jobs: u32, mut seen: Seen) {
    let most = seen.delays.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
    bench.report.row(
        Row::new("worst")
            .say("by", by.name())
            .say("behind", case)
            .say("jobs", jobs)
            // Less: a job had not begun in time, and was not waited for any longer.
            .say("in time", format!("{} of {}", seen.delays.len(), seen.tries))
            .figure("p50 ms", median(&mut seen.delays))
            .figure("max ms", most)
            .figure("jobs/s", seen.rate),
    );
}

/// The delays of one job after the other, each behind `jobs` more.
pub(crate) async fn wait_behind(
    server: &Server,
    sizes: &Sizes,
    by: By,
    case: Case,
    jobs: u32,
) -> Result<Seen> {
    let (tries, patience) = (sizes.tries, sizes.patience);
    let scene = Scene::new(server).await?;
    let groups = case.groups(jobs, tries);
    let starts = Starts::new(groups + tries + 1, groups, case.takes());
    let open = case.prepare(&scene).await?;
    Client::default().operator("bench", None).pause_queue(scene.pool(), QUEUE).await?;
    let taker = Taker::start(by, &scene, &starts).await?;
    sleep(START).await;
    let waits = try_each(&scene, case, jobs, tries, patience, &starts);
    let seen = tokio::select! {
        seen = waits => seen?,
        ended = case.go_on(&scene) => return ended.and(Err("the producers ended".into())),
    };
    taker.end().await?;
    check(&scene, &starts).await?;
    drop(open);
    scene.remove().await?;
    Ok(seen)
}

async fn try_each(
    scene: &Scene,
    case: Case,
    jobs: u32,
    tries: u32,
    patience: Duration,
    starts: &Arc<Starts>,
) -> Result<Seen> {
    let (client, groups) = (Client::default(), case.groups(jobs, tries));
    let mut seen = Seen { tries: tries as usize, ..Seen::default() };
    for number in 0..tries {
        case.load(scene, jobs, number).await?;
        let group = groups + number;
        let mut tx = scene.pool().begin().await?;
        client.operator("bench", None).resume_queue(&mut *tx, QUEUE).await?;
        client.enqueue(&mut *tx, job(group, 0, case)).await?;
        tx.commit().await?;
        let committed = now();
        let Some(found) = starts.wait(group, 0, Instant::now() + patience).await else {
            break;
        };
        seen.delays.push(float(found.began.saturating_sub(committed)) / 1e3);
        if number + 1 < tries {
            client.operator("bench", None).pause_queue(scene.pool(), QUEUE).await?;
        }
    }
    let quick = (0..QUICK).map(|s| job(groups + tries, s, case));
    client.enqueue_many(scene.pool(), quick).await?;
    let begun = now();
    let found = starts.wait(groups + tries, u64::from(QUICK), Instant::now() + patience).await;
    let ended = found.map_or(0, |found| found.ended);
    let last = found.filter(|_| ended == u64::from(QUICK)).map_or_else(now, |found| found.last);
    seen.rate = float(ended) * 1e6 / float(last.saturating_sub(begun).max(1));
    Ok(seen)
}

fn job(g: u32, s: u32, case: Case) -> NewJob {
    NewJob::new(QUEUE, &Job { g, s, t: 0 }).group(format!("g{g}")).priority(case.priority())
}

/// The delays of the first and of the last of `jobs` jobs of one group, which drains with each,
/// while another session pins vacuum's horizon.
pub(crate) async fn drain_pinned(
    server: &Server,
    sizes: &Sizes,
    by: By,
    jobs: u32,
) -> Result<[Seen; 2]> {
    let scene = Scene::new(server).await?;
    let mut session = scene.connect().await?;
    session.execute("begin isolation level repeatable read").await?;
    session.execute("select pg_current_xact_id()").await?;
    let starts = Starts::new(1, 0, Duration::ZERO);
    let taker = Taker::start(by, &scene, &starts).await?;
    sleep(START).await;
    let (client, mut connection) = (Client::default(), scene.connect().await?);
    // Each job's delay, and the time at which it was enqueued.
    let mut drained: Vec<(f64, u64)> = Vec::new();
    let end = Instant::now() + sizes.patience * 4;
    for s in 0..jobs {
        client.enqueue(&mut connection, job(0, s, Case::Nothing)).await?;
        let committed = now();
        let until = Instant::now() + sizes.patience;
        let found = starts.wait(0, u64::from(s) + 1, until).await;
        let Some(found) = found.filter(|found| found.ended > u64::from(s)) else { break };
        drained.push((float(found.last.saturating_sub(committed)) / 1e3, committed));
        if Instant::now() > end {
            break;
        }
        sleep(SETTLE).await;
    }
    taker.end().await?;
    check(&scene, &starts).await?;
    session.close().await?;
    scene.remove().await?;
    let compared = drained.len().min(COMPARED);
    let [first, last] = [&drained[..compared], &drained[drained.len() - compared..]];
    let seen = |drained: &[(f64, u64)]| {
        let time = drained.last().map_or(0, |job| job.1) - drained.first().map_or(0, |job| job.1);
        Seen {
            tries: COMPARED,
            delays: drained.iter().map(|job| job.0).collect(),
            rate: float(drained.len() as u64) * 1e6 / float(time.max(1)),
        }
    };
    Ok([seen(first), seen(last)])
}

/// Returns an error if jobs ran out of order or beside each other, or if one that ran has not ended
/// in the tables, or the other way round.
async fn check(scene: &Scene, starts: &Starts) -> Result<()> {
    starts.witness.verdict()?;
    let statement = "select count(*) from seriatim.job where status = 'succeeded'";
    let succeeded: i64 = sqlx::query_scalar(statement).fetch_one(scene.pool()).await?;
    let ran = starts.witness.finished();
    if succeeded.unsigned_abs() != ran {
        return Err(format!("{ran} handlers ended, {succeeded} jobs have succeeded").into());
    }
    Ok(())
}

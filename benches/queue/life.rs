//! A long time at a steady rate under both holds, with autovacuum on: does anything grow?

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::Server;
use tokio::process::Command;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backlog::Groups;
use crate::bench::Bench;
use crate::flat::Thirds;
use crate::process::{Process, itself};
use crate::produce::Producers;
use crate::report::Row;
use crate::scene::Scene;
use crate::series::{Half, Sample, panels};
use crate::settings::{Settings, Way};
use crate::sizes::{relations, server_kilobytes};
use crate::{Result, plot};

const GROUPS: u32 = 1_000;
/// Producers of each hold.
const PRODUCERS: u32 = 4;
/// Time between two samples. A short life is sampled more often.
const EVERY: Duration = Duration::from_secs(10);
const SAMPLES: u32 = 18;
/// Limit of the time for jobs that still run at the end.
const REST: Duration = Duration::from_mins(1);

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Jobs per second of each hold.
    pub(crate) rate: u32,
    pub(crate) time: Duration,
    pub(crate) plot: Option<PathBuf>,
    /// The program of a worker's process.
    pub(crate) program: fn() -> Result<Command>,
}

impl Plan {
    pub(crate) fn of(settings: &Settings) -> Self {
        let (rate, time) = (settings.rate, settings.sizes().life);
        Self { rate, time, plot: settings.plot.clone(), program: itself }
    }
}

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let plan = bench.life.clone();
    let seconds = plan.time.as_secs();
    bench.step(&format!("{} jobs/s under each hold, {seconds} s", plan.rate));
    let (report, mut samples) = (&mut bench.report, Vec::new());
    let came = live(&bench.server, &plan, |sample| {
        let waiting = sample.holds.iter().map(|half| half.made.saturating_sub(half.seen.finished));
        report.step(&format!("life: {:.0} s, {} jobs wait", sample.at, waiting.sum::<u64>()));
        report.line(&json!({ "life": sample }))?;
        samples.push(sample);
        Ok(())
    })
    .await?;
    report.step(&vacuums(&samples));
    if came.iter().any(|came| *came < 0.9 * f64::from(plan.rate)) {
        bench.found.push(format!("the producers kept only {came:.0?} jobs/s"));
    }
    let grown = find_growth(&samples, |row| report.row(row));
    bench.found.extend(grown.into_iter().map(|what| format!("{what} grew")));
    draw(&samples, plan.plot.as_deref())
}

/// Reports each sample, from the begin to the end, and returns the rates that the producers really
/// kept. Returns an error if a job ran out of order, or did not run.
pub(crate) async fn live(
    server: &Server,
    plan: &Plan,
    mut tell: impl FnMut(Sample) -> Result<()>,
) -> Result<Vec<f64>> {
    let scene = Scene::new(server).await?;
    let ways = Way::both();
    let start = |way: &Way| Process::start((plan.program)()?, &scene, *way, GROUPS);
    let mut workers = ways.iter().map(start).collect::<Result<Vec<_>>>()?;
    let made = ways.map(|_| Arc::new(AtomicU64::new(0)));
    let producers = ways.map(|way| Producers {
        queue: way.queue(),
        count: PRODUCERS,
        batch: 1,
        groups: Groups::Even(GROUPS),
        rate: Some(plan.rate),
        time: plan.time,
    });
    let sampling = async {
        let (begun, every) = (Instant::now(), EVERY.min(plan.time / SAMPLES));
        let mut next = begun + every;
        while next <= begun + plan.time {
            sleep_until(next).await;
            next += every;
            let mut holds = Vec::new();
            for ((way, worker), made) in ways.iter().zip(&mut workers).zip(&made) {
                let (hold, seen) = (way.hold().to_owned(), worker.seen().await?);
                // Read after the other count, so that it cannot be less.
                let made = made.load(Ordering::Relaxed).max(seen.finished);
                holds.push(Half { hold, made, seen, resident_kb: worker.kilobytes("VmRSS") });
            }
            let (relations, server_kb) = (relations(scene.pool()).await?, server_kilobytes(server));
            tell(Sample { at: begun.elapsed().as_secs_f64(), relations, holds, server_kb })?;
        }
        Ok(())
    };
    let [first, second] = producers;
    let produced = tokio::try_join!(
        first.run_counted(&scene, &made[0]),
        second.run_counted(&scene, &made[1]),
        sampling
    )?;
    let mut came = Vec::new();
    for ((way, mut worker), produced) in ways.iter().zip(workers).zip([produced.0, produced.1]) {
        let deadline = Instant::now() + REST;
        while worker.seen().await?.finished < produced.jobs && Instant::now() < deadline {
            // The worker's process answers only when it is asked.
            sleep(Duration::from_millis(100)).await;
        }
        let (hold, ran) = (way.hold(), worker.end().await?.finished);
        if ran != produced.jobs {
            return Err(format!("{hold}: of {} jobs {ran} ran", produced.jobs).into());
        }
        came.push(produced.rate());
    }
    scene.remove().await?;
    Ok(came)
}

/// Returns the names of lines that grew. Each line is a row of the report.
pub(crate) fn find_growth(samples: &[Sample], mut row: impl FnMut(Row)) -> Vec<String> {
    let mut grown = Vec::new();
    for panel in panels(samples) {
        for line in panel.lines {
            let thirds = Thirds::of(&line.values);
            let flat = line.slack.map(|slack| thirds.is_some_and(|its| its.is_flat(slack)));
            let figure = |of: fn(Thirds) -> f64| thirds.map_or(f64::NAN, of);
            let what = format!("{}: {}", panel.title.to_lowercase(), line.name);
            row(Row::new("life")
                .say("what", &what)
                .say("unit", panel.unit)
                .say("flat", flat.map_or("", |flat| if flat { "yes" } else { "no" }))
                .figure("middle third", figure(|its| its.middle))
                .figure("last third", figure(|its| its.last))
                .figure("to middle", figure(Thirds::ratio)));
            grown.extend((flat == Some(false)).then_some(what));
        }
    }
    grown
}

/// Prints the runs of autovacuum between the samples.
fn vacuums(samples: &[Sample]) -> String {
    let Some((first, last)) = samples.first().zip(samples.last()) else { return String::new() };
    let since = first.relations.iter().zip(&last.relations).filter(|(_, r)| r.vacuums > 0);
    let told =
        since.map(|(then, now)| format!("{} {} times", now.name, now.vacuums - then.vacuums));
    let minutes = (last.at - first.at) / 60.0;
    format!("life: in {minutes:.0} min autovacuum did {}", told.collect::<Vec<_>>().join(", "))
}

fn draw(samples: &[Sample], file: Option<&Path>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let minutes: Vec<f64> = samples.iter().map(|sample| sample.at / 60.0).collect();
    Ok(std::fs::write(file, plot::svg(&minutes, &panels(samples)))?)
}

/// Draws the last life in a file of figures.
pub(crate) fn redraw(file: &Path, plot: Option<&Path>) -> Result<()> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let mut line: Value = serde_json::from_str(line)?;
        let Some(sample) = line.get_mut("life") else { continue };
        let sample: Sample = serde_json::from_value(sample.take())?;
        if samples.last().is_some_and(|last| last.at > sample.at) {
            samples.clear();
        }
        samples.push(sample);
    }
    draw(&samples, plot)
}

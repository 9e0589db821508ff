//! The samples of a life, and its lines, to be checked and drawn.

use serde::{Deserialize, Serialize};

use crate::figures::float;
use crate::process::Seen;
use crate::sizes::Relation;

/// All values of one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Seconds since the begin.
    pub(crate) at: f64,
    pub(crate) relations: Vec<Relation>,
    pub(crate) holds: Vec<Half>,
    /// Memory that the server's processes do not share.
    pub(crate) server_kb: Option<u64>,
}

/// Values of the queue of one hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Half {
    pub(crate) hold: String,
    /// Jobs that were enqueued.
    pub(crate) made: u64,
    pub(crate) seen: Seen,
    /// Resident memory of the worker's process.
    pub(crate) resident_kb: Option<u64>,
}

/// Lines with a common unit.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) scale: Scale,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    FromZero,
    /// For values that may grow tenfold, and again.
    Tens,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// One for each sample, not a number if there is none.
    pub(crate) values: Vec<f64>,
    /// Growth that is allowed beside a tenth; `None` if the line is only shown.
    pub(crate) slack: Option<f64>,
}

const MB: f64 = 1_048_576.0;
/// A few pages, in MB: a table of one page that needs a second one is not growing.
const PAGES: f64 = 0.125;
/// Jobs in a second or two.
const MOMENT: f64 = 200.0;

pub(crate) fn panels(samples: &[Sample]) -> Vec<Panel> {
    let panel = |title, unit, lines| Panel { title, unit, scale: Scale::FromZero, lines };
    vec![
        panel("Tables", "MB", relations(samples, true)),
        panel("Indexes", "MB", relations(samples, false)),
        panel("Dead rows", "thousands", dead(samples)),
        panel("Memory of the workers", "MB", workers(samples)),
        panel("Memory of the server's processes", "MB", server(samples)),
        Panel { scale: Scale::Tens, ..panel("From enqueue to handler", "ms", delays(samples)) },
        panel("Jobs waiting", "at each sample", waiting(samples)),
        panel("Jobs done", "per second", done(samples)),
    ]
}

fn line(name: String, slack: Option<f64>, values: impl Iterator<Item = f64>) -> Line {
    Line { name, values: values.collect(), slack }
}

/// Returns a line for each relation in the first sample.
fn of_relations(
    samples: &[Sample],
    which: impl Fn(&Relation) -> bool,
    slack: Option<f64>,
    value: impl Fn(&Relation) -> f64,
) -> Vec<Line> {
    let names =
        samples.first().into_iter().flat_map(|sample| &sample.relations).filter(|r| which(r));
    let of = |sample: &Sample, name: &str| {
        sample.relations.iter().find(|r| r.name == name).map_or(f64::NAN, &value)
    };
    let line_of = |found: &Relation| {
        line(found.name.clone(), slack, samples.iter().map(|sample| of(sample, &found.name)))
    };
    names.map(line_of).collect()
}

fn relations(samples: &[Sample], tables: bool) -> Vec<Line> {
    let bytes = |r: &Relation| float(r.bytes.unsigned_abs()) / MB;
    let lines = of_relations(samples, |r| r.is_table == tables, Some(PAGES), bytes);
    let is_small = |line: &Line| line.values.iter().all(|mb| *mb <= PAGES);
    let (small, mut lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_small);
    if !small.is_empty() {
        let together = (0..samples.len()).map(|at| small.iter().map(|line| line.values[at]).sum());
        lines.push(line(format!("{} small ones", small.len()), Some(PAGES), together));
    }
    lines
}

fn dead(samples: &[Sample]) -> Vec<Line> {
    let thousands = |r: &Relation| float(r.dead.unsigned_abs()) / 1e3;
    of_relations(samples, |r| r.name == "job" || r.name == "queue_group", None, thousands)
}

/// Returns a line for each hold.
fn of_holds<'a>(
    samples: &'a [Sample],
    name: &str,
    slack: Option<f64>,
    value: impl Fn(&'a Half) -> Option<f64>,
) -> Vec<Line> {
    let holds = samples.first().into_iter().flat_map(|sample| sample.holds.iter().enumerate());
    let of = |at: usize| samples.iter().map(move |sample| sample.holds.get(at));
    let line_of = |(at, half): (usize, &Half)| {
        let values = of(at).map(|half| half.and_then(&value).unwrap_or(f64::NAN));
        line(format!("{}{name}", half.hold), slack, values)
    };
    holds.map(line_of).collect()
}

fn workers(samples: &[Sample]) -> Vec<Line> {
    known(of_holds(samples, "", Some(0.0), |half| mb(half.resident_kb)))
}

fn server(samples: &[Sample]) -> Vec<Line> {
    let values = samples.iter().map(|sample| mb(sample.server_kb).unwrap_or(f64::NAN));
    known(vec![line("without what they share".to_owned(), Some(0.0), values)])
}

fn mb(kb: Option<u64>) -> Option<f64> {
    kb.map(|kb| float(kb) / 1024.0)
}

/// Drops lines that this system has no values for.
fn known(mut lines: Vec<Line>) -> Vec<Line> {
    lines.retain(|line| line.values.iter().all(|value| value.is_finite()));
    lines
}

fn delays(samples: &[Sample]) -> Vec<Line> {
    let ms = |us: Option<u64>| us.map(|us| float(us) / 1e3);
    let mut lines = of_holds(samples, " p50", None, |half| ms(half.seen.p50));
    lines.extend(of_holds(samples, " p99", None, |half| ms(half.seen.p99)));
    lines
}

fn waiting(samples: &[Sample]) -> Vec<Line> {
    let waiting = |half: &Half| Some(float(half.made.saturating_sub(half.seen.finished)));
    of_holds(samples, "", Some(MOMENT), waiting)
}

fn done(samples: &[Sample]) -> Vec<Line> {
    let mut lines = of_holds(samples, "", None, |half| Some(float(half.seen.finished)));
    for line in &mut lines {
        let (mut count, mut time) = (0.0, 0.0);
        for (value, sample) in line.values.iter_mut().zip(samples) {
            let rate = (*value - count) / (sample.at - time);
            (count, time) = (*value, sample.at);
            *value = rate;
        }
    }
    lines
}

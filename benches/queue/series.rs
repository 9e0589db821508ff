//! What a life was like, look by look, and as lines that can be judged and drawn.

use serde::{Deserialize, Serialize};

use crate::figures::float;
use crate::process::Seen;
use crate::sizes::Relation;

/// Everything that is noted at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Look {
    /// Seconds since the begin.
    pub(crate) at: f64,
    pub(crate) relations: Vec<Relation>,
    pub(crate) holds: Vec<Half>,
    /// What the server's processes have for themselves.
    pub(crate) server_kb: Option<u64>,
}

/// What belongs to the queue of one hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Half {
    pub(crate) hold: String,
    /// Jobs that were enqueued.
    pub(crate) made: u64,
    pub(crate) seen: Seen,
    /// Of its worker's process.
    pub(crate) resident_kb: Option<u64>,
}

/// Lines that have a unit in common.
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
    /// For what may be ten times more, and again.
    Tens,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// One of each look; not a number where there is none.
    pub(crate) values: Vec<f64>,
    /// By how much it may grow beside a tenth; none: it is only shown.
    pub(crate) slack: Option<f64>,
}

const MB: f64 = 1_048_576.0;
/// A few pages, in MB: a table of one page that needs a second one is not growing.
const PAGES: f64 = 0.125;
/// Jobs in a second or two.
const MOMENT: f64 = 200.0;

pub(crate) fn panels(looks: &[Look]) -> Vec<Panel> {
    let panel = |title, unit, lines| Panel { title, unit, scale: Scale::FromZero, lines };
    vec![
        panel("Tables", "MB", relations(looks, true)),
        panel("Indexes", "MB", relations(looks, false)),
        panel("Dead rows", "thousands", dead(looks)),
        panel("Memory of the workers", "MB", workers(looks)),
        panel("Memory of the server's processes", "MB", server(looks)),
        Panel { scale: Scale::Tens, ..panel("From enqueue to handler", "ms", delays(looks)) },
        panel("Jobs waiting", "at each look", waiting(looks)),
        panel("Jobs done", "per second", done(looks)),
    ]
}

fn line(name: String, slack: Option<f64>, values: impl Iterator<Item = f64>) -> Line {
    Line { name, values: values.collect(), slack }
}

/// A line of each relation that the first look found.
fn of_relations(
    looks: &[Look],
    which: impl Fn(&Relation) -> bool,
    slack: Option<f64>,
    value: impl Fn(&Relation) -> f64,
) -> Vec<Line> {
    let names = looks.first().into_iter().flat_map(|look| &look.relations).filter(|r| which(r));
    let of = |look: &Look, name: &str| {
        look.relations.iter().find(|r| r.name == name).map_or(f64::NAN, &value)
    };
    let line_of = |found: &Relation| {
        line(found.name.clone(), slack, looks.iter().map(|look| of(look, &found.name)))
    };
    names.map(line_of).collect()
}

fn relations(looks: &[Look], tables: bool) -> Vec<Line> {
    let bytes = |r: &Relation| float(r.bytes.unsigned_abs()) / MB;
    let lines = of_relations(looks, |r| r.is_table == tables, Some(PAGES), bytes);
    let is_small = |line: &Line| line.values.iter().all(|mb| *mb <= PAGES);
    let (small, mut lines): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_small);
    if !small.is_empty() {
        let together = (0..looks.len()).map(|at| small.iter().map(|line| line.values[at]).sum());
        lines.push(line(format!("{} small ones", small.len()), Some(PAGES), together));
    }
    lines
}

fn dead(looks: &[Look]) -> Vec<Line> {
    let thousands = |r: &Relation| float(r.dead.unsigned_abs()) / 1e3;
    of_relations(looks, |r| r.name == "job" || r.name == "queue_group", None, thousands)
}

/// A line of each hold.
fn of_holds<'a>(
    looks: &'a [Look],
    name: &str,
    slack: Option<f64>,
    value: impl Fn(&'a Half) -> Option<f64>,
) -> Vec<Line> {
    let holds = looks.first().into_iter().flat_map(|look| look.holds.iter().enumerate());
    let of = |at: usize| looks.iter().map(move |look| look.holds.get(at));
    let line_of = |(at, half): (usize, &Half)| {
        let values = of(at).map(|half| half.and_then(&value).unwrap_or(f64::NAN));
        line(format!("{}{name}", half.hold), slack, values)
    };
    holds.map(line_of).collect()
}

fn workers(looks: &[Look]) -> Vec<Line> {
    known(of_holds(looks, "", Some(0.0), |half| mb(half.resident_kb)))
}

fn server(looks: &[Look]) -> Vec<Line> {
    let values = looks.iter().map(|look| mb(look.server_kb).unwrap_or(f64::NAN));
    known(vec![line("without what they share".to_owned(), Some(0.0), values)])
}

fn mb(kb: Option<u64>) -> Option<f64> {
    kb.map(|kb| float(kb) / 1024.0)
}

/// What this system does not tell is no figure.
fn known(mut lines: Vec<Line>) -> Vec<Line> {
    lines.retain(|line| line.values.iter().all(|value| value.is_finite()));
    lines
}

fn delays(looks: &[Look]) -> Vec<Line> {
    let ms = |us: Option<u64>| us.map(|us| float(us) / 1e3);
    let mut lines = of_holds(looks, " p50", None, |half| ms(half.seen.p50));
    lines.extend(of_holds(looks, " p99", None, |half| ms(half.seen.p99)));
    lines
}

fn waiting(looks: &[Look]) -> Vec<Line> {
    let waiting = |half: &Half| Some(float(half.made.saturating_sub(half.seen.finished)));
    of_holds(looks, "", Some(MOMENT), waiting)
}

fn done(looks: &[Look]) -> Vec<Line> {
    let mut lines = of_holds(looks, "", None, |half| Some(float(half.seen.finished)));
    for line in &mut lines {
        let (mut count, mut time) = (0.0, 0.0);
        for (value, look) in line.values.iter_mut().zip(looks) {
            let rate = (*value - count) / (look.at - time);
            (count, time) = (*value, look.at);
            *value = rate;
        }
    }
    lines
}

//! No span of time has more starts than its part of the rate, the burst and one more.

use std::collections::BTreeMap;

use crate::claims::{Claim, claims};
use crate::event::Time;
use crate::history::{History, Rate};
use crate::violation::{Promise, Violations};

/// A start: it was claimed after one moment, and by the other.
struct Start {
    after: Time,
    by: Time,
    job: usize,
    run: usize,
}

pub(crate) fn check(history: &History, violations: &mut Violations) {
    let mut rates: BTreeMap<&str, Vec<&Rate>> = BTreeMap::new();
    for rate in &history.rates {
        rates.entry(&rate.queue).or_default().push(rate);
    }
    for (queue, rates) in rates {
        let mut starts = starts(history, queue);
        starts.sort_by_key(|start| start.by);
        for stretch in stretches(history, &rates) {
            let within =
                starts.iter().filter(|its| stretch.from <= its.after && its.by <= stretch.to);
            check_stretch(history, &stretch, &within.collect::<Vec<_>>(), violations);
        }
    }
}

fn starts(history: &History, queue: &str) -> Vec<Start> {
    let mut starts = Vec::new();
    for group in history.groups.iter().filter(|group| group.queue == queue) {
        for Claim { job, run, after } in claims(history, group) {
            let its = &history.jobs[job];
            let enqueued = its.enqueue.as_ref().map_or(Time::MIN, |enqueue| enqueue.begin);
            let by = its.runs[run].start.saturating_add(history.uncertainty);
            let after = after.max(enqueued).saturating_sub(history.uncertainty).min(by);
            starts.push(Start { after, by, job, run });
        }
    }
    starts
}

/// A time in which there was surely a rate, with the changes that it had.
struct Stretch<'h> {
    from: Time,
    to: Time,
    rates: Vec<&'h Rate>,
}

fn stretches<'h>(history: &History, rates: &[&'h Rate]) -> Vec<Stretch<'h>> {
    let slack = 2 * history.uncertainty;
    let mut found: Vec<Stretch<'h>> = Vec::new();
    for (at, rate) in rates.iter().enumerate() {
        if rate.starts.is_none() {
            continue;
        }
        let to = rates.get(at + 1).map_or(Time::MAX, |next| next.begin - slack);
        match found.last_mut().filter(|_| at > 0 && rates[at - 1].starts.is_some()) {
            Some(last) => {
                last.to = to;
                last.rates.push(rate);
            }
            None => found.push(Stretch { from: rate.end + slack, to, rates: vec![rate] }),
        }
    }
    found
}

/// A number of starts, in millionths.
type Millionths = i128;
const ONE: Millionths = 1_000_000;

fn check_stretch(
    history: &History,
    stretch: &Stretch<'_>,
    starts: &[&Start],
    violations: &mut Violations,
) {
    let burst = stretch.rates.iter().map(|rate| rate.burst).max().unwrap_or_default();
    let allowance = Allowance::new(history, stretch);
    let mut from: Vec<Time> = starts.iter().map(|start| start.after).collect();
    from.sort_unstable();
    from.dedup();
    let mut spans = Spans::new(from.len());
    let mut seen = 0;
    for start in starts {
        while from.get(seen).is_some_and(|&from| from <= start.by) {
            spans.begin(seen, allowance.until(from[seen]));
            seen += 1;
        }
        spans.add(from.partition_point(|&from| from < start.after));
        let allowed = allowance.through(start.by) + (Millionths::from(burst) + 1) * ONE;
        if let Some(over) = spans.most().map(|most| most - allowed).filter(|&over| over > 0) {
            violations.add(Promise::Rate, start.by, vec![start.job], || {
                format!(
                    "job {} started (attempt {}) as one of {:.3} starts more than its queue's rate, \
                     the burst and one more allow in any span of time that ends then",
                    history.jobs[start.job].name,
                    history.jobs[start.job].runs[start.run].attempt,
                    millionths(over),
                )
            });
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with three digits")]
fn millionths(n: Millionths) -> f64 {
    n as f64 / 1e6
}

/// How many starts the rates of a stretch allow up to a moment: each as long as it may have been
/// there. A changed rate starts again, with its burst.
struct Allowance {
    /// (from when on, what was allowed until then, starts in millionths, per).
    pieces: Vec<(Time, Millionths, Millionths, Time)>,
    /// (begin, end, what was allowed by it and those before it).
    changes: Vec<(Time, Time, Millionths)>,
}

impl Allowance {
    fn new(history: &History, stretch: &Stretch<'_>) -> Self {
        let slack = 2 * history.uncertainty;
        let rates = &stretch.rates;
        // Each may have been there from its begin until the end of the next one.
        let spans: Vec<(Time, Time, &Rate)> = rates
            .iter()
            .enumerate()
            .map(|(at, rate)| {
                let to = rates.get(at + 1).map_or(Time::MAX, |next| next.end + slack);
                (rate.begin - slack, to, *rate)
            })
            .collect();
        let mut moments: Vec<Time> = spans.iter().flat_map(|&(from, to, _)| [from, to]).collect();
        moments.push(stretch.from);
        moments.retain(|&at| stretch.from <= at && at < stretch.to);
        moments.sort_unstable();
        moments.dedup();
        let (mut pieces, mut first): (Vec<(Time, Millionths, Millionths, Time)>, usize) =
            (Vec::new(), 0);
        for at in moments {
            while spans.get(first).is_some_and(|&(_, to, _)| to <= at) {
                first += 1;
            }
            let there = spans[first..].iter().take_while(|&&(from, _, _)| from <= at);
            let starts = |rate: &Rate| Millionths::from(rate.starts.unwrap_or_default()) * ONE;
            let fastest = there.map(|&(_, _, rate)| (starts(rate), rate.per)).max_by(
                |&(a, of_a), &(b, of_b)| {
                    (a * Millionths::from(of_b)).cmp(&(b * Millionths::from(of_a)))
                },
            );
            let (starts, per) = fastest.unwrap_or((0, 1));
            let until = pieces.last().map_or(0, |piece| grown(*piece, at));
            pieces.push((at, until, starts, per));
        }
        let mut changes = Vec::new();
        let mut all = 0;
        for rate in rates.iter().skip(1) {
            all += (Millionths::from(rate.burst) + 1) * ONE;
            changes.push((rate.begin - slack, rate.end + slack, all));
        }
        Self { pieces, changes }
    }

    fn grown_by(&self, at: Time) -> Millionths {
        let piece = self.pieces.partition_point(|&(from, ..)| from <= at);
        piece.checked_sub(1).map_or(0, |piece| grown(self.pieces[piece], at))
    }

    /// Returns what is allowed up to a moment, with the changes that may have come by then.
    fn through(&self, at: Time) -> Millionths {
        let changes = self.changes.partition_point(|&(begin, ..)| begin <= at);
        self.grown_by(at) + changes.checked_sub(1).map_or(0, |last| self.changes[last].2)
    }

    /// Returns the same, without the changes that may have come after that moment.
    fn until(&self, at: Time) -> Millionths {
        let changes = self.changes.partition_point(|&(_, end, _)| end < at);
        self.grown_by(at) + changes.checked_sub(1).map_or(0, |last| self.changes[last].2)
    }
}

fn grown((from, until, starts, per): (Time, Millionths, Millionths, Time), at: Time) -> Millionths {
    until + starts * Millionths::from(at - from) / Millionths::from(per)
}

/// For each moment from which a span may begin: what was allowed until then, and the starts since.
/// Returns the greatest sum (a tree of sums: a start counts for each span that begins by then).
struct Spans {
    leaves: usize,
    /// The starts in each part.
    sums: Vec<Millionths>,
    /// The greatest of what was allowed, and the starts behind it in the same part.
    most: Vec<Option<Millionths>>,
}

impl Spans {
    fn new(moments: usize) -> Self {
        let leaves = moments.max(1).next_power_of_two();
        Self { leaves, sums: vec![0; 2 * leaves], most: vec![None; 2 * leaves] }
    }

    /// Spans that begin at this moment count from here on.
    fn begin(&mut self, moment: usize, allowed: Millionths) {
        let at = self.leaves + moment;
        self.most[at] = Some(allowed + self.sums[at]);
        self.lift(at);
    }

    fn add(&mut self, moment: usize) {
        let at = self.leaves + moment;
        self.sums[at] += ONE;
        if let Some(most) = &mut self.most[at] {
            *most += ONE;
        }
        self.lift(at);
    }

    fn lift(&mut self, mut at: usize) {
        while at > 1 {
            at /= 2;
            let (left, right) = (2 * at, 2 * at + 1);
            self.sums[at] = self.sums[left] + self.sums[right];
            let left = self.most[left].map(|most| most + self.sums[right]);
            self.most[at] = left.max(self.most[right]);
        }
    }

    fn most(&self) -> Option<Millionths> {
        self.most[1]
    }
}

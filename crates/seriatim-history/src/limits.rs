//! No more jobs of a queue, and no more groups of a limit key, run at once than the limit says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::claims::{Claim, claims};
use crate::event::{Counted, Name, Time};
use crate::history::{History, Run};
use crate::violation::{Promise, Violations};

/// A run that a limit counts.
struct Its<'h> {
    /// The number of its job, or of its group: it is counted once.
    unit: usize,
    group: usize,
    job: usize,
    run: &'h Run,
    /// Its slot was not taken before.
    after: Time,
}

pub(crate) fn check(history: &History, violations: &mut Violations) {
    if history.limits.is_empty() {
        return;
    }
    // By the queue, and the limit key that its limit is for.
    let mut counted: BTreeMap<(&str, Option<&Name>), Vec<Its<'_>>> = BTreeMap::new();
    for (at, group) in history.groups.iter().enumerate() {
        // The group had no slot of a key before it had a job.
        let begins = group.jobs.iter().filter_map(|&job| history.jobs[job].enqueue.as_ref());
        let first = begins.map(|enqueue| enqueue.begin).min().unwrap_or(Time::MIN);
        for Claim { job, run, after } in claims(history, group) {
            let its = &history.jobs[job];
            let Some(enqueue) = its.enqueue.as_ref() else { continue };
            let mut count = |key, unit, first| {
                let after = after.max(first);
                let its = Its { unit, group: at, job, run: &its.runs[run], after };
                counted.entry((group.queue.as_str(), key)).or_default().push(its);
            };
            count(None, job, enqueue.begin);
            if enqueue.limit_key.is_some() {
                count(enqueue.limit_key.as_ref(), at, first);
            }
        }
    }
    for ((queue, key), mut runs) in counted {
        runs.sort_by_key(|its| its.run.start);
        check_one(history, queue, key, &runs, violations);
    }
}

fn check_one(
    history: &History,
    queue: &str,
    key: Option<&Name>,
    runs: &[Its<'_>],
    violations: &mut Violations,
) {
    let of = if key.is_some() { Counted::Key } else { Counted::Queue };
    let mut limits = Limits::new(history, queue, of);
    // Runs that are surely in their handlers: by their ends, and by their claims.
    let mut ends: BTreeSet<(Time, usize)> = BTreeSet::new();
    let mut claimed: BTreeSet<(Time, usize)> = BTreeSet::new();
    let mut units: HashMap<usize, usize> = HashMap::new();
    for (at, its) in runs.iter().enumerate() {
        while let Some(&(until, ended)) = ends.first()
            && !history.surely_before(its.run.start, until)
        {
            ends.pop_first();
            claimed.remove(&(runs[ended].after, ended));
            if let Some(n) = units.get_mut(&runs[ended].unit) {
                *n -= 1;
                if *n == 0 {
                    units.remove(&runs[ended].unit);
                }
            }
        }
        let is_new = !units.contains_key(&its.unit);
        *units.entry(its.unit).or_default() += 1;
        ends.insert((history.until(its.run), at));
        claimed.insert((its.after, at));
        let since = claimed.first().map_or(Time::MIN, |&(after, _)| after);
        // The last of their claims counted all others: by a limit that stood since the first.
        let most = limits.most_between(since, its.run.start);
        if is_new && most.is_some_and(|most| units.len() > most) {
            let jobs = ends.iter().map(|&(_, at)| runs[at].job).collect();
            violations.add(Promise::Limit, its.run.start, jobs, || {
                let what = key.map_or_else(
                    || format!("jobs of queue {}", queue.escape_debug()),
                    |key| format!("groups of limit key {key}"),
                );
                format!(
                    "job {} of group {} started (attempt {}) as the handler of one of {} {what} at \
                     once, and {} may run",
                    history.jobs[its.job].name,
                    history.groups[its.group].name,
                    its.run.attempt,
                    units.len(),
                    most.unwrap_or_default(),
                )
            });
        }
    }
}

/// The greatest limit between two moments, of which the second one only grows.
struct Limits {
    /// (when it may have come, when it was surely gone, how many), in their order.
    changes: Vec<(Time, Time, usize)>,
    seen: usize,
    /// When those were gone that none behind them exceeds: the first is the greatest.
    greatest: Vec<(Time, usize)>,
}

impl Limits {
    fn new(history: &History, queue: &str, of: Counted) -> Self {
        let its = history.limits.iter().filter(|limit| limit.queue == queue && limit.of == of);
        let its: Vec<_> = its.collect();
        let slack = 2 * history.uncertainty;
        let number = |limit: Option<u32>| {
            limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
        };
        // Before the first one there is no limit.
        let begins = its.iter().map(|limit| (limit.begin - slack, number(limit.limit)));
        let begins = std::iter::once((Time::MIN, usize::MAX)).chain(begins);
        let ends = its.iter().map(|limit| limit.end + slack).chain([Time::MAX]);
        let changes = begins.zip(ends).map(|((from, most), gone)| (from, gone, most)).collect();
        Self { changes, seen: 0, greatest: Vec::new() }
    }

    /// `None`: there was a moment without a limit.
    fn most_between(&mut self, from: Time, to: Time) -> Option<usize> {
        while let Some(&(begin, gone, most)) = self.changes.get(self.seen)
            && begin <= to
        {
            self.seen += 1;
            while self.greatest.pop_if(|(_, less)| *less <= most).is_some() {}
            self.greatest.push((gone, most));
        }
        let at = self.greatest.partition_point(|&(gone, _)| gone < from);
        self.greatest.get(at).map(|&(_, most)| most).filter(|&most| most < usize::MAX)
    }
}

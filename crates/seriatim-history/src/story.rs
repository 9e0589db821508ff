//! A violation as a short story: the events of its jobs and of its group, with times, processes and
//! ids.

use std::fmt::Write as _;

use crate::event::{Enqueued, Time};
use crate::history::{Enqueue, History, Job, Run};
use crate::violation::{Promise, Violation};

/// The number of lines at the begin and at the end of a long story.
const TOLD: (usize, usize) = (12, 20);

#[allow(clippy::cast_precision_loss, reason = "for people to read")]
pub(crate) fn milliseconds(time: Time) -> f64 {
    time as f64 / 1000.0
}

/// Tells a violation as a short story of its group.
pub fn tell(history: &History, violation: &Violation) -> String {
    let mut lines = Vec::new();
    for &at in &violation.jobs {
        of_job(history, &history.jobs[at], violation.promise, &mut lines);
    }
    of_the_others(history, violation, &mut lines);
    lines.sort();
    lines.dedup();
    let mut told = format!("{}: {}\n", violation.promise, violation.what);
    let place = violation.jobs.iter().find_map(|&at| history.jobs[at].enqueue.as_ref()?.group);
    if let Some(group) = place.map(|group| &history.groups[group]) {
        let queue = &group.queue;
        let _ = writeln!(
            told,
            "  group {}, queue {queue:?}; in ms since the history began:",
            group.name
        );
    }
    let long = lines.len() > TOLD.0 + TOLD.1 + 1;
    for (at, (time, line)) in lines.iter().enumerate() {
        let left_out = lines.len().saturating_sub(TOLD.0 + TOLD.1);
        if long && at == TOLD.0 {
            let _ = writeln!(told, "  {:>14}  {left_out} more", "…");
        }
        if !long || at < TOLD.0 || at >= TOLD.0 + left_out {
            let _ = writeln!(told, "  {:>14.3}  {line}", milliseconds(time - history.first));
        }
    }
    for &at in &violation.jobs {
        let job = &history.jobs[at];
        if let Some(status) = job.status {
            let _ = writeln!(told, "  {:>14}  job {} is {status}", "at the end", job.name);
        }
    }
    told
}

fn of_job(history: &History, job: &Job, promise: Promise, lines: &mut Vec<(Time, String)>) {
    let name = &job.name;
    if let Some(enqueue) = &job.enqueue {
        lines.push((enqueue.begin, enqueued(history, job, enqueue)));
        if let (Some(end), Enqueued::Committed) = (enqueue.end, enqueue.outcome) {
            lines.push((end, format!("job {name}: the enqueue is acknowledged")));
        }
    }
    for run in &job.runs {
        of_run(history, job, run, lines);
    }
    for settle in &job.settles {
        let line = format!("job {name}: attempt {} is settled: {}", settle.attempt, settle.answer);
        lines.push((settle.begin, line));
    }
    for leave in &job.leaves {
        let sure = if leave.end.is_some() { "" } else { ", perhaps" };
        lines.push((leave.begin, format!("job {name} leaves its group as {}{sure}", leave.left)));
    }
    for back in &job.returns {
        let sure = if back.end.is_some() { "" } else { ", perhaps" };
        lines.push((back.begin, format!("job {name} is put back in its place{sure}")));
    }
    if matches!(promise, Promise::P4 | Promise::P10) {
        for effect in &job.effects {
            let found = history.found.get(&effect.key).copied().unwrap_or(0);
            let line = format!(
                "job {name}: attempt {} writes effect {}, found {found} times at the end",
                effect.attempt, effect.key
            );
            lines.push((effect.at, line));
        }
    }
}

fn enqueued(history: &History, job: &Job, enqueue: &Enqueue) -> String {
    let name = &job.name;
    let by = enqueue.process.map(|at| format!(" by {}", history.processes[at].name));
    let place = enqueue.place.map(|place| format!(", place {place}"));
    let outcome = match (enqueue.outcome, &enqueue.with) {
        (Enqueued::Committed, _) => String::new(),
        (Enqueued::RolledBack, _) => String::from(", rolled back"),
        (Enqueued::Duplicate, _) => String::from(", refused as a duplicate"),
        (Enqueued::Unknown, _) => String::from(", whether it was committed is not known"),
        (Enqueued::With, Some(with)) => {
            format!(" in the transaction of attempt {} of job {}", with.attempt, with.job)
        }
        (Enqueued::Made, _) => String::from(", by the queue itself"),
        (Enqueued::With, None) => String::from(" in the transaction of another job"),
    };
    let key = enqueue.limit_key.as_ref().map(|key| format!(", limit key {key}"));
    let batch = enqueue.batch.map(|at| format!(", in batch {}", history.batches[at].name));
    let [by, place, key, batch] = [by, place, key, batch].map(Option::unwrap_or_default);
    format!("job {name}: its enqueue begins{by}{place}{key}{batch}{outcome}")
}

fn of_run(history: &History, job: &Job, run: &Run, lines: &mut Vec<(Time, String)>) {
    let (name, process) = (&job.name, &history.processes[run.process]);
    let what = format!("job {name}: attempt {}", run.attempt);
    lines.push((run.start, format!("{what} starts in {}", process.name)));
    match (run.end, process.gone) {
        (Some((at, outcome)), _) => lines.push((at, format!("{what} ends: {outcome}"))),
        (None, Some((begin, _))) => lines
            .push((begin.max(run.start), format!("{what} ends with its process {}", process.name))),
        (None, None) => lines.push((history.last, format!("{what} has not ended"))),
    }
}

/// Returns the other runs and failures of the group meanwhile.
fn of_the_others(history: &History, violation: &Violation, lines: &mut Vec<(Time, String)>) {
    let times = lines.iter().map(|(time, _)| *time);
    let (Some(from), Some(to)) = (times.clone().min(), times.max()) else {
        return;
    };
    let to = to.max(violation.at);
    let groups = violation.jobs.iter().filter_map(|&at| history.jobs[at].enqueue.as_ref()?.group);
    for group in groups {
        for job in history.groups[group].jobs.iter().filter(|at| !violation.jobs.contains(at)) {
            let job = &history.jobs[*job];
            let meanwhile = |run: &&Run| run.start <= to && history.until(run) >= from;
            for run in job.runs.iter().filter(meanwhile) {
                of_run(history, job, run, lines);
            }
        }
    }
    let meanwhile = history.faults.iter().filter(|f| f.begin <= to && f.end >= from);
    lines.extend(meanwhile.map(|fault| (fault.begin, fault.what.escape_debug().to_string())));
}

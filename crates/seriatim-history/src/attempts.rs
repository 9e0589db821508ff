//! P9: attempts are counted before their handlers start, so their numbers rise by one, and none
//! comes twice.

use crate::event::{Ended, Time};
use crate::history::{History, Job, Run};
use crate::life::last_life;
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    let faults = Faults::new(history);
    for (at, job) in history.jobs.iter().enumerate() {
        check_numbers(history, &faults, at, job, violations);
        check_limit(history, at, job, violations);
    }
}

fn check_numbers(
    history: &History,
    faults: &Faults,
    at: usize,
    job: &Job,
    violations: &mut Violations,
) {
    let enqueued = job.enqueue.as_ref().map_or(Time::MIN, |enqueue| enqueue.begin);
    let mut last: Option<&Run> = None;
    for run in &job.runs {
        let (before, since) = last.map_or((0, enqueued), |last| (last.attempt, last.start));
        let excused =
            || faults.between(since, run.start) || asked_to_leave(history, job, since, run.start);
        let clocks_differ = last.is_some_and(|last| !history.surely_before(last.start, run.start));
        let what = if last.is_some() && run.attempt == before {
            Some("came twice")
        } else if run.attempt < before && !clocks_differ {
            Some("came after a later one")
        // A claim that came to nothing was an attempt as well.
        } else if run.attempt > before.saturating_add(1) && !clocks_differ && !excused() {
            Some("came with none before it, and nothing went wrong that could have been one")
        } else {
            None
        };
        if let Some(what) = what {
            violations.add(Promise::P9, run.start, vec![at], || {
                format!("attempt {} of job {} {what}", run.attempt, job.name)
            });
        }
        last = Some(run);
    }
}

/// Returns whether a request to leave the line was there: the job may have been claimed by then,
/// and ended before its handler began.
fn asked_to_leave(history: &History, job: &Job, from: Time, to: Time) -> bool {
    job.leaves.iter().any(|leave| {
        let end = leave.end.unwrap_or(leave.begin);
        !history.surely_before(to, leave.begin) && !history.surely_before(end, from)
    })
}

/// Checks the job's last life: a job that returns begins anew, up to the same limit.
fn check_limit(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    let Some(most) = job.enqueue.as_ref().and_then(|enqueue| enqueue.max_attempts) else {
        return;
    };
    let held_against = |run: &&Run| run.end.is_none_or(|(_, outcome)| outcome != Ended::Released);
    let mut counted = last_life(history, job).iter().filter(held_against);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if let Some(beyond) = counted.nth(most) {
        violations.add(Promise::P9, beyond.start, vec![at], || {
            format!("attempt {} of job {} is beyond its {most} attempts", beyond.attempt, job.name)
        });
    }
}

/// The failures, by time.
struct Faults {
    begins: Vec<Time>,
    /// The latest end of the failures up to here.
    ends: Vec<Time>,
    slack: Time,
}

impl Faults {
    fn new(history: &History) -> Self {
        let latest = |latest: &mut Time, fault: &crate::history::Fault| {
            *latest = fault.end.max(*latest);
            Some(*latest)
        };
        Self {
            begins: history.faults.iter().map(|fault| fault.begin).collect(),
            ends: history.faults.iter().scan(Time::MIN, latest).collect(),
            slack: 2 * history.uncertainty,
        }
    }

    /// Returns whether a failure was, or may have been, between two moments.
    fn between(&self, from: Time, to: Time) -> bool {
        let begun = self.begins.partition_point(|&begin| begin <= to.saturating_add(self.slack));
        begun > 0 && self.ends[begun - 1].saturating_add(self.slack) >= from
    }
}

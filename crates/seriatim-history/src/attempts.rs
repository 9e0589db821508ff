//! P9: attempts are counted before their handlers start, so their numbers rise by one, and none
//! comes twice.

use crate::event::{Ended, Time};
use crate::history::{History, Job, Run};
use crate::life::{last_life, surely_put_off};
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    for (at, job) in history.jobs.iter().enumerate() {
        check_numbers(history, at, job, violations);
        check_forgiven(history, at, job, violations);
        check_limit(history, at, job, violations);
    }
}

fn check_numbers(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    let enqueued = job.enqueue.as_ref().map_or(Time::MIN, |enqueue| enqueue.begin);
    let mut last: Option<&Run> = None;
    for run in &job.runs {
        let (before, since) = last.map_or((0, enqueued), |last| (last.attempt, last.start));
        let excused = || {
            history.fault_between(since, run.start)
                || job.is_asked_to_leave(history, since, run.start)
        };
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

/// Checks the job's last life: a job that returns begins anew, up to the same limit.
fn check_limit(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    let Some(most) = job.enqueue.as_ref().and_then(|enqueue| enqueue.max_attempts) else {
        return;
    };
    let held_against = |run: &&Run| {
        use Ended::{Again, Released, Snoozed};
        run.end.is_none_or(|(_, outcome)| !matches!(outcome, Released | Snoozed | Again))
    };
    let counted: Vec<&Run> = last_life(history, job).iter().filter(held_against).collect();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let most = most.saturating_add(forgiven_beside_faults(history, job, &counted));
    if let Some(beyond) = counted.get(most) {
        violations.add(Promise::P9, beyond.start, vec![at], || {
            format!("attempt {} of job {} is beyond its {most} attempts", beyond.attempt, job.name)
        });
    }
}

/// Returns how many of these runs the queue may not have counted: something went wrong meanwhile,
/// and more attempts do not count than the ends of its runs explain. Time that a handler waits for
/// a connection is not held against its job.
fn forgiven_beside_faults(history: &History, job: &Job, counted: &[&Run]) -> usize {
    let explained = job.runs.len() - counted.len().min(job.runs.len());
    let forgiven =
        job.forgiven.map_or(0, |forgiven| usize::try_from(forgiven).unwrap_or(usize::MAX));
    let beside_faults = counted
        .iter()
        .filter(|run| run.end.is_some_and(|(end, _)| history.fault_between(run.start, end)));
    beside_faults.count().min(forgiven.saturating_sub(explained))
}

/// Checks that no attempt counts that put its job off.
fn check_forgiven(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    let Some(forgiven) = job.forgiven else { return };
    let put_off = |run: &&Run| surely_put_off(history, job, run);
    let snoozes = job.runs.iter().filter(put_off).count();
    if snoozes > usize::try_from(forgiven).unwrap_or(usize::MAX) {
        violations.add(Promise::P9, history.last, vec![at], || {
            format!(
                "job {} was put off {snoozes} times, and only {forgiven} of its attempts do not count",
                job.name
            )
        });
    }
}

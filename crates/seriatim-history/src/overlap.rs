//! P2: two handlers of a group, or of one job, never run at the same moment.

use crate::event::Time;
use crate::history::{History, Run};
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    for group in &history.groups {
        check_runs(history, &group.jobs, violations);
    }
    for (at, job) in history.jobs.iter().enumerate() {
        if job.enqueue.as_ref().is_none_or(|enqueue| enqueue.group.is_none()) {
            check_runs(history, &[at], violations);
        }
    }
}

/// A job and one of its runs.
type Its<'h> = (usize, &'h Run);

fn check_runs(history: &History, jobs: &[usize], violations: &mut Violations) {
    let mut runs: Vec<Its<'_>> = jobs
        .iter()
        .flat_map(|&job| history.jobs[job].runs.iter().map(move |run| (job, run)))
        .collect();
    runs.sort_by_key(|(_, run)| run.start);
    let mut longest: Option<(Time, Its<'_>)> = None;
    for (job, run) in runs {
        let until = history.until(run);
        if let Some((inside_until, inside)) = longest
            && history.surely_before(run.start, inside_until)
        {
            report(history, inside, (job, run), inside_until, violations);
        }
        if longest.is_none_or(|(farthest, _)| until > farthest) {
            longest = Some((until, (job, run)));
        }
    }
}

fn report(
    history: &History,
    (inside, its): Its<'_>,
    (job, run): Its<'_>,
    until: Time,
    violations: &mut Violations,
) {
    let jobs = if inside == job { vec![job] } else { vec![inside, job] };
    violations.add(Promise::P2, run.start, jobs, || {
        let name = |at: usize| &history.jobs[at].name;
        format!(
            "attempt {} of job {} started in process {} while attempt {} of job {} was in its handler in process {}, for {:.3} ms more",
            run.attempt,
            name(job),
            history.processes[run.process].name,
            its.attempt,
            name(inside),
            history.processes[its.process].name,
            crate::story::milliseconds(until - run.start),
        )
    });
}

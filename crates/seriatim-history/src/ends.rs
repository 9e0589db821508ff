//! P3: every enqueued job comes to an end, or is still there.

use crate::event::{Ended, Enqueued, Found, Said, Time};
use crate::history::{Enqueue, History, Job};
use crate::life::may_have_ended;
use crate::verdict::{Verdict, verdict};
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    for (at, job) in history.jobs.iter().enumerate() {
        let Some(enqueue) = &job.enqueue else { continue };
        let Some(by) = there_by(history, job, enqueue) else { continue };
        let due = history.drained.is_some_and(|drained| history.surely_before(by, drained));
        let what = match job.status {
            Some(Found::Missing) => "was enqueued, and is not there",
            Some(Found::Waiting) if due => "still waits, and the queue is said to be drained",
            Some(Found::Succeeded) if !may_have_succeeded(job) => {
                "is said to have succeeded, and no handler of it has"
            }
            None if due && !may_have_ended(history, job, enqueue) => {
                if job.runs.is_empty() {
                    "never started, and the queue is said to be drained"
                } else {
                    "never came to an end, and the queue is said to be drained"
                }
            }
            _ => continue,
        };
        let time = history.drained.unwrap_or(history.last);
        violations.add(Promise::P3, time, vec![at], || format!("job {} {what}", job.name));
    }
}

/// When it was surely there; `None`: it may never have been.
fn there_by(history: &History, job: &Job, enqueue: &Enqueue) -> Option<Time> {
    let ran = job.runs.first().map(|run| run.start);
    let told = match (enqueue.outcome, &enqueue.with) {
        (Enqueued::Committed | Enqueued::Made, _) => enqueue.end,
        (Enqueued::With, Some(with)) => {
            let parent = &history.jobs[history.find(&with.job)?];
            let run = parent.run(with.attempt)?;
            let counts = verdict(history, parent, run) == Verdict::Counts;
            run.end.map(|(at, _)| at).filter(|_| counts)
        }
        (Enqueued::Unknown, _) => None,
        // A job that is there all the same is another violation.
        _ => return None,
    };
    told.into_iter().chain(ran).min()
}

fn may_have_succeeded(job: &Job) -> bool {
    job.runs.iter().any(|run| match run.end {
        Some((_, outcome)) => outcome == Ended::Succeeded,
        // Its process died before it could report the settle.
        None => job.settles_of(run.attempt).iter().any(|its| its.answer != Said::Stale),
    })
}

//! A batch starts one follow-up: behind the ends of all its jobs, and only if it was sealed.

use crate::event::{Ended, Enqueued, Found, Said, Time, When};
use crate::history::{Batch, History, Job};
use crate::life::lives;
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    for batch in &history.batches {
        check_batch(history, batch, violations);
    }
}

fn check_batch(history: &History, batch: &Batch, violations: &mut Violations) {
    let name = &batch.name;
    let mut add = |at: Time, jobs: Vec<usize>, what: &dyn Fn() -> String| {
        violations.add(Promise::Batch, at, jobs, what);
    };
    if batch.follow_ups.len() > 1 {
        let many = batch.follow_ups.len();
        add(history.last, batch.follow_ups.clone(), &|| {
            format!("batch {name} started {many} follow-ups")
        });
    }
    for &at in &batch.follow_ups {
        let follow_up = &history.jobs[at];
        let Some(start) = follow_up.runs.first().map(|run| run.start) else { continue };
        if batch.seal.is_none_or(|seal| history.surely_before(start, seal)) {
            add(start, vec![at], &|| {
                format!("the follow-up of batch {name} started before the batch was sealed")
            });
        }
        let Some(when) = batch.when else { continue };
        let early = |job: &&usize| !may_be_done(history, &history.jobs[**job], when, start);
        for &job in joined(history, batch).iter().filter(early) {
            add(start, vec![job, at], &|| {
                format!(
                    "the follow-up of batch {name} started before job {} of the batch {}",
                    history.jobs[job].name,
                    match when {
                        When::AllEnded => "had ended",
                        When::AllSucceeded => "had succeeded",
                    }
                )
            });
        }
    }
    if batch.follow_ups.is_empty() && is_due(history, batch) {
        let time = history.drained.unwrap_or(history.last);
        add(time, joined(history, batch), &|| {
            format!("all jobs of batch {name} have ended, and it started no follow-up")
        });
    }
}

/// The jobs that are surely in the batch.
fn joined(history: &History, batch: &Batch) -> Vec<usize> {
    let is_there = |job: &usize| {
        let job = &history.jobs[*job];
        let outcome = job.enqueue.as_ref().map(|enqueue| enqueue.outcome);
        let is_there = job.status.is_some_and(|status| status != Found::Missing);
        !matches!(outcome, Some(Enqueued::RolledBack | Enqueued::Duplicate))
            && (is_there || !job.runs.is_empty() || outcome == Some(Enqueued::Committed))
    };
    batch.jobs.iter().copied().filter(is_there).collect()
}

/// Returns whether a job of a batch may have ended by then, as the batch wants it. A job that was
/// put back had ended before.
fn may_be_done(history: &History, job: &Job, when: When, by: Time) -> bool {
    match when {
        When::AllEnded => job.enqueue.as_ref().is_none_or(|enqueue| {
            let first = lives(history, job, enqueue).into_iter().next();
            let until = first.and_then(|life| life.in_the_way_until);
            until.is_some_and(|until| !history.surely_before(by, until))
        }),
        When::AllSucceeded => job.runs.iter().any(|run| match run.end {
            Some((at, Ended::Succeeded)) => !history.surely_before(by, at),
            Some(_) => false,
            // Its process died before it could report the settle.
            None => job.settles_of(run.attempt).iter().any(|its| its.answer != Said::Stale),
        }),
    }
}

/// Returns whether the batch was surely sealed, and its jobs have ended, as the queue itself says.
fn is_due(history: &History, batch: &Batch) -> bool {
    let Some(((when, opened), (sealed, drained))) =
        batch.when.zip(batch.opened).zip(batch.sealed.zip(history.drained))
    else {
        return false;
    };
    history.surely_before(sealed.max(opened), drained)
        && joined(history, batch).iter().all(|&job| {
            history.jobs[job].status.is_some_and(|status| match when {
                When::AllEnded => status.is_final(),
                When::AllSucceeded => status == Found::Succeeded,
            })
        })
}

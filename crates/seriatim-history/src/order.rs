//! P1: a job does not start while an earlier job of its group is in the way.

use std::collections::HashSet;

use crate::claims::{Claim, claims};
use crate::event::{Delayed, Time};
use crate::history::{Enqueue, Group, History, Job};
use crate::life::{known_by, lives};
use crate::prefix_max::PrefixMax;
use crate::violation::{Promise, Violations};

/// A job that has its place in a group.
struct Placed {
    job: usize,
    key: Time,
    seen_from: Time,
    /// The last moment of time for a job that still is.
    until: Time,
}

/// A start, and the earliest time at which its claim can have read the group.
struct Start {
    job: usize,
    attempt: u32,
    at: Time,
    read_at: Time,
    /// Jobs with a lower key go before it.
    below: Time,
}

/// The rule that decides which of two jobs goes first.
#[derive(Clone, Copy)]
enum By {
    /// One was acknowledged before the other one's enqueue began.
    Time,
    /// The place that the queue itself gave.
    Place,
}

pub(crate) fn check(history: &History, violations: &mut Violations) {
    for group in &history.groups {
        let claims = claims(history, group);
        let mut told = HashSet::new();
        for by in [By::Time, By::Place] {
            check_group(history, group, by, &claims, &mut told, violations);
        }
        check_places(history, group, violations);
    }
}

/// The jobs that have a place in their group.
fn placed<'h>(
    history: &'h History,
    group: &'h Group,
) -> impl Iterator<Item = (usize, &'h Job, &'h Enqueue)> {
    group.jobs.iter().filter_map(|&at| {
        let job = &history.jobs[at];
        let enqueue = job.enqueue.as_ref()?;
        let passed = history.delayed == Delayed::Pass && enqueue.run_at.is_some();
        (!passed).then_some((at, job, enqueue))
    })
}

fn check_group(
    history: &History,
    group: &Group,
    by: By,
    claims: &[Claim],
    told: &mut HashSet<usize>,
    violations: &mut Violations,
) {
    let mut line = Vec::new();
    for (at, job, enqueue) in placed(history, group) {
        let key = match by {
            By::Time => known_by(job, enqueue),
            By::Place => enqueue.place,
        };
        let Some(key) = key else { continue };
        for life in lives(history, job, enqueue) {
            let Some(seen_from) = life.seen_from else { continue };
            let until = life.in_the_way_until.unwrap_or(Time::MAX);
            line.push(Placed { job: at, key, seen_from, until });
        }
    }
    line.sort_by_key(|job| job.seen_from);
    let mut keys: Vec<Time> = line.iter().map(|job| job.key).collect();
    keys.sort_unstable();
    keys.dedup();

    let start = |&Claim { job, run, after }: &Claim| {
        let enqueue = history.jobs[job].enqueue.as_ref()?;
        if history.delayed == Delayed::Pass && enqueue.run_at.is_some() {
            return None;
        }
        let below = match by {
            By::Time => enqueue.begin.saturating_sub(2 * history.uncertainty),
            By::Place => enqueue.place?,
        };
        let run = &history.jobs[job].runs[run];
        let read_at = enqueue.begin.max(after);
        Some(Start { job, attempt: run.attempt, at: run.start, read_at, below })
    };
    let mut starts: Vec<Start> = claims.iter().filter_map(start).collect();
    starts.sort_by_key(|start| start.read_at);

    let mut in_the_way = PrefixMax::new(keys.len());
    let mut arriving = line.iter().enumerate().peekable();
    for start in starts {
        while let Some((at, job)) =
            arriving.next_if(|(_, job)| history.surely_before(job.seen_from, start.read_at))
        {
            in_the_way.add(keys.partition_point(|&key| key < job.key), (job.until, at));
        }
        let before = keys.partition_point(|&key| key < start.below);
        if let Some((until, at)) = in_the_way.of_first(before)
            && history.surely_before(start.at, until)
            // A job that stays in the way would be reported with every start behind it.
            && told.insert(line[at].job)
        {
            report(history, group, by, &start, &line[at], violations);
        }
    }
}

fn report(
    history: &History,
    group: &Group,
    by: By,
    start: &Start,
    first: &Placed,
    violations: &mut Violations,
) {
    violations.add(Promise::P1, start.at, vec![first.job, start.job], || {
        let why = match by {
            By::Time => "whose enqueue was acknowledged before its own began",
            By::Place => "which has the lower place and was there before it was claimed",
        };
        let still = if first.until == Time::MAX {
            "has not come to an end yet"
        } else {
            "was not out of the way"
        };
        format!(
            "job {} of group {} started (attempt {}) while {}, {why}, {still}",
            history.jobs[start.job].name, group.name, start.attempt, history.jobs[first.job].name,
        )
    });
}

/// Checks that the queue's own places agree with what was acknowledged before another enqueue
/// began.
fn check_places(history: &History, group: &Group, violations: &mut Violations) {
    let mut placed: Vec<(usize, &Enqueue, i64)> = placed(history, group)
        .filter_map(|(at, _, enqueue)| Some((at, enqueue, enqueue.place?)))
        .collect();
    placed.sort_by_key(|(_, enqueue, _)| enqueue.begin);
    let mut acknowledged: Vec<(Time, i64, usize)> = placed
        .iter()
        .filter_map(|&(at, enqueue, place)| {
            Some((known_by(&history.jobs[at], enqueue)?, place, at))
        })
        .collect();
    acknowledged.sort_unstable();
    let mut next = 0;
    let mut most: Option<(i64, usize)> = None;
    for (job, enqueue, place) in placed {
        while let Some(&(by, its, at)) = acknowledged.get(next)
            && history.surely_before(by, enqueue.begin)
        {
            most = most.max(Some((its, at)));
            next += 1;
        }
        if let Some((its, before)) = most.filter(|&(its, _)| its > place) {
            violations.add(Promise::P1, enqueue.begin, vec![before, job], || {
                format!(
                    "job {} of group {} got place {place}, behind {} with place {its}, whose enqueue was acknowledged before",
                    history.jobs[job].name, group.name, history.jobs[before].name
                )
            });
        }
    }
}

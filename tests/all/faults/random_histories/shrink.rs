//! A program that fails is made smaller as long as it fails.

use super::program::{End, Job, Part, Program, Step, Then};

/// Smaller programs, those with the most left out first.
pub fn candidates(program: &Program) -> Vec<Program> {
    let mut found = Vec::new();
    let mut without = |change: &dyn Fn(&mut Program)| {
        let mut smaller = program.clone();
        change(&mut smaller);
        // Without jobs there is nothing to go wrong.
        if smaller.size() < program.size() && smaller.jobs().next().is_some() {
            found.push(smaller);
        }
    };
    without(&|p| p.chaos.clear());
    without(&|p| p.receives = None);
    without(&|p| p.schedule = None);
    without(&|p| p.batches.clear());
    without(&|p| p.limits.per_key = None);
    without(&|p| p.limits.rate = None);
    without(&|p| p.limits.spacing = None);
    for at in 0..program.producers.len() {
        without(&|p| drop(p.producers.remove(at)));
    }
    for (at, steps) in program.producers.iter().enumerate() {
        for (from, to) in cuts(steps.len()) {
            without(&|p| drop(p.producers[at].drain(from..to)));
        }
    }
    for (from, to) in cuts(program.chaos.len()) {
        without(&|p| drop(p.chaos.drain(from..to)));
    }
    without(&|p| p.jobs_mut().for_each(|job| *job = plain(job)));
    without(&|p| p.jobs_mut().for_each(quiet));
    for at in 0..program.jobs().count() {
        for change in [|job: &mut Job| *job = plain(job), quiet] {
            without(&|p| {
                if let Some(job) = p.jobs_mut().nth(at) {
                    change(job);
                }
            });
        }
    }
    for (at, steps) in program.producers.iter().enumerate() {
        for step in 0..steps.len() {
            for to in 0..4 {
                without(&|p| simpler(&mut p.producers[at][step], to));
            }
        }
    }
    without(&|p| p.workers = 1);
    without(&|p| p.workers = (p.workers - 1).max(1));
    without(&|p| p.slots = 1);
    without(&|p| p.jobs_per_turn = 1);
    without(&|p| p.halt = false);
    found
}

/// Halves, quarters and single ones of a row.
fn cuts(length: usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut width = length;
    while width > 0 {
        found.extend((0..length).step_by(width).map(|from| (from, (from + width).min(length))));
        width /= 2;
    }
    found
}

/// The job without its settings; what its handler does stays.
fn plain(job: &Job) -> Job {
    Job { group: job.group, plan: job.plan.clone(), ..Job::default() }
}

/// Its handlers let nothing rest, report nothing, and do not put it off.
fn quiet(job: &mut Job) {
    for turn in &mut job.plan {
        (turn.rest, turn.reports) = (None, false);
        if matches!(turn.then, Then::Snooze(_) | Then::Again(_)) {
            turn.then = Then::Succeed;
        }
    }
}

fn simpler(step: &mut Step, how: usize) {
    match (how, step) {
        (0, Step::Transaction(_, end)) => *end = End::Commit,
        (1, Step::Transaction(parts, _)) if parts.len() > 1 => drop(parts.pop()),
        (3, Step::Transaction(parts, _)) if parts.len() > 1 => drop(parts.remove(0)),
        (2, Step::Transaction(parts, _)) => {
            if let Some(Part::Enqueue(jobs) | Part::Savepoint(jobs, _)) = parts.last_mut()
                && jobs.len() > 1
            {
                jobs.pop();
            }
        }
        (1, Step::Enqueue(jobs)) if jobs.len() > 1 => drop(jobs.pop()),
        (2, Step::Enqueue(jobs)) if jobs.len() > 1 => drop(jobs.remove(0)),
        _ => {}
    }
}

//! P4 and P10: a successful attempt has its effects once, no other attempt has any; a job that was
//! not enqueued does not run.

use std::collections::{HashMap, HashSet};

use crate::event::{Ended, Enqueued, Found, Name, Said};
use crate::history::{Effect, History, Job};
use crate::verdict::{Verdict, verdict};
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    let mut written = HashSet::new();
    for (at, job) in history.jobs.iter().enumerate() {
        check_enqueue(history, at, job, violations);
        check_settles(history, at, job, violations);
        // No effects were searched, so none can be missing.
        if !history.found.is_empty() {
            check_effects(history, at, job, violations);
        }
        for effect in &job.effects {
            if !written.insert(&effect.key) {
                violations.add(Promise::P4, effect.at, vec![at], || {
                    format!("effect {} was written under one key twice", effect.key)
                });
            }
        }
    }
    let mut strange: Vec<&Name> = history
        .found
        .iter()
        .filter(|(key, n)| **n > 0 && !written.contains(key))
        .map(|(key, _)| key)
        .collect();
    strange.sort_unstable();
    for key in strange {
        violations.add(Promise::P4, history.last, vec![], || {
            format!("effect {key} is there, and no handler is known to have written it")
        });
    }
}

/// Checks that every job that ran, or is there, was enqueued.
fn check_enqueue(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    let there = job.status.is_some_and(|status| status != Found::Missing);
    if job.runs.is_empty() && !there {
        return;
    }
    let why = match &job.enqueue {
        None => "no enqueue of it is known",
        Some(enqueue) => match (enqueue.outcome, &enqueue.with) {
            (Enqueued::RolledBack, _) => "its enqueue was rolled back",
            (Enqueued::Duplicate, _) => "its enqueue was refused as a duplicate",
            (Enqueued::With, Some(with)) => {
                let parent = history.find(&with.job).map(|at| &history.jobs[at]);
                let run = parent.and_then(|parent| Some((parent, parent.run(with.attempt)?)));
                match run.map(|(parent, run)| verdict(history, parent, run)) {
                    Some(Verdict::Never(..)) => "the attempt that enqueued it did not succeed",
                    None => "the attempt that enqueued it is not known to have begun",
                    Some(Verdict::Counts | Verdict::Perhaps) => return,
                }
            }
            _ => return,
        },
    };
    let time = job.runs.first().map_or(history.last, |run| run.start);
    violations.add(Promise::P4, time, vec![at], || {
        let did = if job.runs.is_empty() { "is there" } else { "ran" };
        format!("job {} {did}, and {why}", job.name)
    });
}

/// Checks that the answers to settles agree with the runs.
fn check_settles(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    for settle in job.settles.iter().filter(|settle| settle.answer == Said::Done) {
        let Some(newer) = job.newest().filter(|run| run.attempt > settle.attempt) else {
            continue;
        };
        let its = job.run(settle.attempt);
        let succeeded =
            its.is_some_and(|run| run.end.is_some_and(|(_, end)| end == Ended::Succeeded));
        if history.surely_before(newer.start, settle.begin) {
            violations.add(Promise::P10, settle.begin, vec![at], || {
                format!(
                    "attempt {} of job {} was settled after attempt {} had begun",
                    settle.attempt, job.name, newer.attempt
                )
            });
        } else if succeeded
            && !job.returns.iter().any(|back| back.end.is_none_or(|end| end > settle.begin))
        {
            violations.add(Promise::P4, newer.start, vec![at], || {
                format!(
                    "job {} ran again (attempt {}) after its success in attempt {} was recorded",
                    job.name, newer.attempt, settle.attempt
                )
            });
        }
    }
}

fn check_effects(history: &History, at: usize, job: &Job, violations: &mut Violations) {
    let count = |effect: &Effect| history.found.get(&effect.key).copied().unwrap_or(0);
    let mut of: HashMap<u32, Vec<&Effect>> = HashMap::new();
    for effect in &job.effects {
        of.entry(effect.attempt).or_default().push(effect);
    }
    // One attempt after the other, so that the answer is the same each time.
    for run in &job.runs {
        let Some(effects) = of.remove(&run.attempt) else { continue };
        let verdict = verdict(history, job, run);
        let all = effects.iter().all(|effect| count(effect) == 1);
        let none = effects.iter().all(|effect| count(effect) == 0);
        for effect in effects {
            let found = count(effect);
            let (promise, why) = match verdict {
                Verdict::Counts if found != 1 => (Promise::P4, "and the attempt has succeeded"),
                Verdict::Never(promise, why) if found != 0 => (promise, why),
                Verdict::Perhaps if !all && !none => {
                    (Promise::P4, "and others of the attempt are there another number of times")
                }
                _ => continue,
            };
            violations.add(promise, effect.at, vec![at], || {
                format!(
                    "effect {} of attempt {} of job {} is there {}, {why}",
                    effect.key,
                    effect.attempt,
                    job.name,
                    times(found)
                )
            });
        }
    }
}

fn times(count: u64) -> String {
    match count {
        0 => String::from("not at all"),
        1 => String::from("once"),
        count => format!("{count} times"),
    }
}

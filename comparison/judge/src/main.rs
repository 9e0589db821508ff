//! Judges a recorded history by `seriatim-history`, and writes down the smallest story of each
//! kind of violation: `judge HISTORY PREFIX`. Prints the counts as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use seriatim_history::event::{Ended, Found};
use seriatim_history::history::{Job, Run};
use seriatim_history::{History, Promise, Violations, check, tell};

/// A kind of violation, and the jobs of each one that was found.
type Kinds = BTreeMap<&'static str, (usize, Vec<Vec<usize>>)>;

fn kind(promise: Promise) -> &'static str {
    match promise {
        Promise::P1 => "order",
        Promise::P2 => "overlap",
        Promise::P3 => "lost",
        _ => "other",
    }
}

fn has_succeeded(run: &Run) -> bool {
    run.end.is_some_and(|(_, outcome)| outcome == Ended::Succeeded)
}

/// The kinds that the checker has no promise for: a handler that succeeds twice, and a job that
/// waits for ever.
fn of_jobs(history: &History, is: impl Fn(&Job) -> bool) -> (usize, Vec<Vec<usize>>) {
    let jobs = history.jobs.iter().enumerate();
    let found: Vec<_> = jobs.filter(|(_, job)| is(job)).map(|(at, _)| vec![at]).collect();
    (found.len(), found)
}

fn kinds(history: &History, violations: &Violations) -> Kinds {
    let mut kinds = Kinds::new();
    for violation in &violations.kept {
        let found = kinds.entry(kind(violation.promise)).or_default();
        found.1.push(violation.jobs.clone());
    }
    for (promise, count) in &violations.counts {
        kinds.entry(kind(*promise)).or_default().0 += count;
    }
    let twice = |job: &Job| job.runs.iter().filter(|run| has_succeeded(run)).count() > 1;
    kinds.insert("twice", of_jobs(history, twice));
    kinds.insert("stuck", of_jobs(history, |job| job.status == Some(Found::Waiting)));
    kinds.retain(|_, (count, _)| *count > 0);
    kinds
}

/// Returns the lines about these jobs, their processes and the faults meanwhile.
fn about(lines: &[Value], names: &BTreeSet<&str>) -> Vec<Value> {
    let of_jobs = |line: &&Value| line["job"].as_str().is_some_and(|job| names.contains(job));
    let mut kept: Vec<Value> = lines.iter().filter(of_jobs).cloned().collect();
    let times = |line: &Value| {
        let fields = ["at", "begin", "end"];
        fields.iter().filter_map(|field| line[*field].as_i64()).collect::<Vec<_>>()
    };
    let of: Vec<i64> = kept.iter().flat_map(times).collect();
    let (Some(&from), Some(&to)) = (of.iter().min(), of.iter().max()) else {
        return kept;
    };
    let processes: BTreeSet<_> =
        kept.iter().filter_map(|line| line["process"].as_str().map(str::to_owned)).collect();
    kept.extend(
        lines
            .iter()
            .filter(|line| match line["event"].as_str() {
                Some("gone") => {
                    line["process"].as_str().is_some_and(|name| processes.contains(name))
                }
                Some("fault") => {
                    let its = times(line);
                    its.iter().min().is_some_and(|&begin| begin <= to)
                        && its.iter().max().is_some_and(|&end| end >= from)
                }
                Some("drained") => true,
                _ => false,
            })
            .cloned(),
    );
    kept.sort_by_key(|line| times(line).first().copied().unwrap_or(i64::MAX));
    kept
}

/// Returns the shortest story that shows this kind by itself: all lines about the jobs of one
/// violation, so that nothing is left out that would excuse it.
fn smallest(
    history: &History,
    lines: &[Value],
    found: &[Vec<usize>],
    kind: &str,
) -> Option<String> {
    let stories = found.iter().take(1000).map(|jobs| {
        let names = jobs.iter().map(|&at| history.jobs[at].name.0.as_str()).collect();
        about(lines, &names)
    });
    let mut stories: Vec<Vec<Value>> = stories.collect();
    stories.sort_by_key(Vec::len);
    stories.into_iter().find_map(|story| {
        let text: String = story.iter().map(|line| format!("{line}\n")).collect();
        let history = History::read(text.as_bytes()).ok()?;
        kinds(&history, &check(&history)).contains_key(kind).then_some(text)
    })
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (file, prefix) = args.next().zip(args.next()).context("judge HISTORY PREFIX")?;
    let text = fs::read_to_string(&file)?;
    let history = History::read(text.as_bytes())?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let violations = check(&history);
    let mut counts = serde_json::Map::new();
    for (kind, (count, found)) in kinds(&history, &violations) {
        counts.insert(kind.to_owned(), count.into());
        if let Some(story) = smallest(&history, &lines, &found, kind) {
            fs::write(format!("{prefix}-{kind}.jsonl"), story)?;
        }
    }
    let mut stories = String::new();
    for violation in &violations.kept {
        stories += &tell(&history, violation);
    }
    fs::write(format!("{file}.stories"), stories)?;
    let runs = history.jobs.iter().map(|job| job.runs.len()).sum::<usize>();
    println!("{}", json!({"jobs": history.jobs.len(), "runs": runs, "found": counts}));
    Ok(())
}

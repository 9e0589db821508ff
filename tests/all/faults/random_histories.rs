//! Random programs on the real thing: producers, worker processes and the disturber write
//! down what they see, and the checker of `crates/seriatim-history` decides.
//!
//! `cargo test --test all random_histories -- --nocapture` runs them. `SERIATIM_HISTORY_SEED=…`
//! repeats a run, `SERIATIM_HISTORY_RUNS=…` runs more. `SERIATIM_HISTORY_SIZE=4` makes the programs
//! four times as long. `SERIATIM_HISTORY_KEEP=1` keeps the histories of good runs too.

mod chaos;
pub mod features;
pub mod produce;
pub mod program;
pub mod read_back;
mod receivers;
pub mod recorder;
pub mod run;
mod shrink;
pub mod worker;

use std::time::{Duration, Instant};

use program::{Job, Limits, Part, Program, Sabotage, Step, Then, Turn, generate};
use run::{keep, run};
use worker::STRANDED;

use crate::support::worker_process::told;
use crate::support::{sample, size};

/// A number that the environment may say.
fn said(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker of other tests, which run it in a process of its own"]
async fn work() {
    if let Some(settings) = told() {
        worker::work(settings).await;
    }
}

/// How long each test begins new programs, unless the environment says how many it runs.
const USUAL_TIME: Duration = Duration::from_secs(12);

/// Runs programs of this seed and those behind it. One that breaks a promise is made smaller, and
/// told.
async fn keeps_the_promises(leases: bool) {
    let first = said("SERIATIM_HISTORY_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let runs = said("SERIATIM_HISTORY_RUNS");
    let length = said("SERIATIM_HISTORY_SIZE").unwrap_or(1);
    println!("SERIATIM_HISTORY_SEED={first} SERIATIM_HISTORY_SIZE={length}, leases: {leases}");
    let all = Instant::now();
    for seed in first..first + runs.unwrap_or_else(|| size(2, 5)) {
        if runs.is_none() && all.elapsed() > USUAL_TIME {
            break;
        }
        let program = generate(seed, leases, usize::try_from(length).unwrap());
        let begun = Instant::now();
        let outcome = run(&program).await;
        println!(
            "seed {seed}: {} jobs, {} of them made by the queue, {} events, {} acts, {} workers in {:?}",
            outcome.jobs,
            outcome.made,
            outcome.events,
            program.chaos.len(),
            program.workers,
            begun.elapsed()
        );
        if said("SERIATIM_HISTORY_KEEP").is_some() {
            keep(&outcome, &format!("history-{seed}"));
        }
        if !outcome.broken.is_empty() {
            let file = keep(&outcome, &format!("history-{seed}"));
            println!("seed {seed} as it was: {}\n{}\n{}", file.display(), outcome.told, program);
            let time = said("SERIATIM_HISTORY_SHRINK_SECONDS").unwrap_or(60);
            let (begun, time) = (Instant::now(), Duration::from_secs(time));
            let smallest = run::shrink(program, outcome, |_| begun.elapsed() < time).await;
            fails(seed, length, leases, &smallest.0, &smallest.1);
        }
    }
}

fn fails(seed: u64, length: u64, leases: bool, program: &Program, outcome: &run::Outcome) {
    let file = keep(outcome, &format!("history-{seed}-small"));
    let under = if leases { "leases" } else { "transactions" };
    panic!(
        "SERIATIM_HISTORY_SEED={seed} SERIATIM_HISTORY_RUNS=1 SERIATIM_HISTORY_SIZE={length} \
         cargo test --test all random_programs_keep_the_promises_under_{under}\n\
         breaks {:?}\n{}\nThe smallest program that does:\n{program}\nIts history: {}",
        outcome.broken,
        outcome.told,
        file.display()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn random_programs_keep_the_promises_under_transactions() {
    keeps_the_promises(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_programs_keep_the_promises_under_leases() {
    keeps_the_promises(true).await;
}

/// Twelve jobs of one group on two workers, broken on purpose.
fn broken(sabotage: Sabotage, lease: Option<u64>, turn: &Turn) -> Program {
    let job = Job { group: Some(0), plan: vec![turn.clone(); 2], ..Job::default() };
    let enqueue = Step::Enqueue(vec![job.clone(), job.clone()]);
    let transaction = Step::Transaction(vec![Part::Enqueue(vec![job])], program::End::Commit);
    Program {
        lease,
        workers: 2,
        slots: 2,
        jobs_per_turn: 1,
        halt: false,
        receives: None,
        limits: Limits::default(),
        sweeps: true,
        batches: Vec::new(),
        schedule: None,
        producers: vec![
            (0..8)
                .map(|n| if n % 2 == 0 { enqueue.clone() } else { transaction.clone() })
                .collect(),
        ],
        chaos: Vec::new(),
        sabotage: Some(sabotage),
    }
}

async fn is_found(
    sabotage: Sabotage,
    lease: Option<u64>,
    turn: &Turn,
    promise: &str,
) -> (Program, run::Outcome) {
    shows(broken(sabotage, lease, turn), promise).await
}

/// Runs what is broken until it shows, which it does nearly always, and gives the program back with
/// what it came to.
async fn shows(program: Program, promise: &str) -> (Program, run::Outcome) {
    let mut outcome = run(&program).await;
    for _ in 0..3 {
        if outcome.broken.iter().any(|broken| broken.starts_with(promise)) {
            break;
        }
        outcome = run(&program).await;
    }
    let found = outcome.broken.iter().any(|broken| broken.starts_with(promise));
    let file = keep(&outcome, &format!("history-{:?}", program.sabotage));
    assert!(found, "{:?} and no {promise}: {}", outcome.broken, file.display());
    // The sweep's report is no story of the checker.
    assert!(promise == STRANDED || outcome.told.contains(promise), "{}", outcome.told);
    (program, outcome)
}

const LEASE: Option<u64> = Some(600_000);

/// A handler of 100 ms that writes an effect first.
fn slow(then: Then) -> Turn {
    Turn { ms: 100, writes: (1, 0), then, ..Turn::plain() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_freed_by_hand_is_found_and_the_program_shrunk() {
    // Before it has a transaction: behind row locks no other session could.
    let unlocked = Turn { writes: (0, 1), ..slow(Then::Succeed) };
    let (program, outcome) = is_found(Sabotage::FreeClaims, LEASE, &unlocked, "P2 ").await;
    let (begun, size) = (Instant::now(), program.size());
    let until_smaller =
        |program: &Program| program.size() == size && begun.elapsed() < Duration::from_mins(1);
    let (smaller, outcome) = run::shrink(program, outcome, until_smaller).await;
    assert!(smaller.size() < size, "{smaller}");
    assert!(!outcome.broken.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_beside_the_transaction_is_found() {
    let quick = Turn { ms: 1, ..slow(Then::Retry) };
    is_found(Sabotage::WriteOutside, None, &quick, "P4 ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_deleted_by_hand_is_found() {
    is_found(Sabotage::Delete, None, &slow(Then::Succeed), "P3 ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_sent_to_the_back_of_the_line_is_found() {
    is_found(Sabotage::Renumber, LEASE, &slow(Then::Succeed), "P1 ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_are_taken_by_hand_are_found() {
    // Before they have a transaction: behind row locks no other session could write their rows.
    let unlocked = Turn { writes: (0, 1), ..slow(Then::Succeed) };
    let mut program = broken(Sabotage::ForgetSlots, LEASE, &unlocked);
    program.limits.per_key = Some(1);
    for (number, job) in (0..).zip(program.jobs_mut()) {
        (job.group, job.limit_key) = (Some(number), Some(0));
    }
    shows(program, "Limit ").await;
}

/// The sweep reports a group that nothing would wake. Without the sweep, its jobs never end.
#[tokio::test(flavor = "multi_thread")]
async fn a_gated_group_that_nothing_wakes_is_found() {
    for (sweeps, promise) in sample([(true, STRANDED), (false, "P3 ")]) {
        let mut program = broken(Sabotage::ForgetFreedSlots, None, &slow(Then::Succeed));
        (program.limits.per_key, program.sweeps, program.workers) = (Some(1), sweeps, 1);
        for (number, job) in (0..).zip(program.jobs_mut()) {
            (job.group, job.limit_key) = (Some(number), Some(0));
        }
        shows(program, promise).await;
    }
}

#[test]
fn a_seed_gives_one_program_and_shrinking_makes_it_smaller() {
    let mut acts = std::collections::HashSet::new();
    for seed in 0..200 {
        let program = generate(seed, seed % 2 == 0, 1);
        assert_eq!(program, generate(seed, seed % 2 == 0, 1));
        acts.extend(program.chaos.iter().map(|(_, act)| std::mem::discriminant(act)));
        // A newcomer's run makes some of the programs smaller.
        if seed.is_multiple_of(size(5, 1)) {
            for smaller in shrink::candidates(&program) {
                assert!(smaller.size() < program.size(), "{smaller}\nof\n{program}");
            }
        }
    }
    assert_eq!(acts.len(), 11, "every act comes");
    // Only the parts that cannot be left out remain.
    let mut program = generate(1, true, 1);
    let has_savepoint = |program: &Program| format!("{program}").contains("Savepoint");
    assert!(has_savepoint(&program), "{program}");
    while let Some(smaller) = shrink::candidates(&program).into_iter().find(has_savepoint) {
        program = smaller;
    }
    assert_eq!(
        (program.jobs().count(), program.chaos.len(), program.workers),
        (1, 0, 1),
        "{program}"
    );
    let features = (program.limits, program.batches.len(), program.schedule);
    assert_eq!(features, (Limits::default(), 0, None), "{program}");
}

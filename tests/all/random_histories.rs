//! Random programs on the real thing: producers, worker processes and whoever disturbs them write down what they see, and
//! the checker of `examples/check_history` decides.
//!
//! `SERIATIM_HISTORY_SEED=… SERIATIM_HISTORY_RUNS=… cargo test --test all random_histories -- --nocapture`

mod chaos;
mod produce;
mod program;
mod recorder;
mod run;
mod shrink;
mod worker;

use std::time::{Duration, Instant};

use program::{Program, generate};
use run::{keep, run};

use crate::worker_process::told;

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

/// Runs programs of this seed and those behind it. One that breaks a promise is made smaller, and told.
async fn keeps_the_promises(leases: bool) {
    let first = said("SERIATIM_HISTORY_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let runs = said("SERIATIM_HISTORY_RUNS").unwrap_or(4);
    println!("SERIATIM_HISTORY_SEED={first}, leases: {leases}");
    for seed in first..first + runs {
        let program = generate(seed, leases);
        let begun = Instant::now();
        let outcome = run(&program).await;
        println!(
            "seed {seed}: {} jobs, {} events, {} acts, {} workers in {:?}",
            outcome.jobs,
            outcome.events,
            program.chaos.len(),
            program.workers,
            begun.elapsed()
        );
        if !outcome.broken.is_empty() {
            let file = keep(&outcome, &format!("history-{seed}"));
            println!("seed {seed} as it was: {}\n{}\n{}", file.display(), outcome.told, program);
            let time = said("SERIATIM_HISTORY_SHRINK_SECONDS").unwrap_or(60);
            let smallest = run::shrink(program, outcome, Duration::from_secs(time)).await;
            fails(seed, leases, &smallest.0, &smallest.1);
        }
    }
}

fn fails(seed: u64, leases: bool, program: &Program, outcome: &run::Outcome) {
    let file = keep(outcome, &format!("history-{seed}-small"));
    panic!(
        "SERIATIM_HISTORY_SEED={seed} SERIATIM_HISTORY_RUNS=1 (leases: {leases}) breaks {:?}\n{}\nThe smallest program that does:\n{program}\nIts history: {}",
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

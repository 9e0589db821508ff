//! Random programs of SQS clients under chaos. The checker of `crates/seriatim-history` decides
//! whether order, one at a time in a group, nothing lost and one job for each message hold.
//!
//! `cargo test -p seriatim-cli --test sqs -- --nocapture` runs some, and with `--ignored` many.
//! `SERIATIM_HISTORY_SEED=…` begins with another seed, `SERIATIM_HISTORY_RUNS=…` says how many,
//! `SERIATIM_HISTORY_SIZE=…` makes each random one so many times as long.

use std::time::Instant;

use crate::program::{Program, Sabotage, broken, failing_over, generate};
use crate::run::{keep, run};

fn said(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().unwrap())
}

/// Runs so many random programs, unless the environment says otherwise.
async fn keeps_the_promises(runs: u64, size: u64) {
    let size = said("SERIATIM_HISTORY_SIZE").unwrap_or(size);
    let size = usize::try_from(size).unwrap();
    all_keep_the_promises(runs, |seed| generate(seed, size)).await;
}

async fn all_keep_the_promises(runs: u64, program: impl Fn(u64) -> Program) {
    let first = said("SERIATIM_HISTORY_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let runs = said("SERIATIM_HISTORY_RUNS").unwrap_or(runs);
    for seed in first..first + runs {
        let program = program(seed);
        println!("SERIATIM_HISTORY_SEED={seed}, {program:?}");
        let begun = Instant::now();
        let outcome = run(&program).await;
        println!(
            "seed {seed}: {} jobs, {} attempts, {} faults, {} events in {:.1?}",
            outcome.jobs,
            outcome.attempts,
            outcome.faults,
            outcome.events,
            begun.elapsed()
        );
        if !outcome.broken.is_empty() {
            let file = keep(&outcome, &seed.to_string());
            panic!("seed {seed}: {:?}: {}\n{}", outcome.broken, file.display(), outcome.told);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqs_clients_keep_the_promises_under_chaos() {
    keeps_the_promises(1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes"]
async fn sqs_clients_keep_the_promises_for_long() {
    keeps_the_promises(20, 4).await;
}

/// Their servers follow the primary.
#[tokio::test(flavor = "multi_thread")]
async fn sqs_clients_keep_the_promises_when_a_standby_takes_over() {
    all_keep_the_promises(1, failing_over).await;
}

async fn is_found(sabotage: Sabotage, promise: &str) {
    let outcome = run(&broken(sabotage)).await;
    let found = outcome.broken.iter().any(|broken| broken.starts_with(promise));
    let file = keep(&outcome, &format!("{sabotage:?}"));
    assert!(found, "{:?} and no {promise}: {}", outcome.broken, file.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_of_another_message_is_found() {
    is_found(Sabotage::WrongHandle, "P3 ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_slower_than_its_visibility_is_found() {
    is_found(Sabotage::Overstay, "P2 ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_handled_in_another_order_are_found() {
    is_found(Sabotage::Reversed, "P1 ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_sent_again_under_another_id_is_found() {
    is_found(Sabotage::FreshIds, "one message is one job").await;
}

//! Tests of the checks and sums behind the figures. The benchmark itself has no test harness.

#![allow(dead_code, clippy::unwrap_used, clippy::float_cmp)]

mod backlog;
mod bench;
mod beside;
mod cost;
mod counters;
mod drain;
mod enqueue;
mod figures;
mod flat;
mod handler;
mod horizon;
mod host;
mod idle;
mod latency;
mod life;
mod life_checks;
mod limit;
mod memory;
mod mixed;
mod plot;
mod process;
mod produce;
mod report;
mod scene;
mod series;
mod settings;
mod sizes;
mod statements;
mod table;
mod taker;
mod witness;
mod work;
mod worst;
mod worst_cases;
mod worst_checks;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use backlog::{Groups, load};
use figures::{ends, median, percentile, rate, short};
use table::table;
use witness::{Job, Witness};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn job(g: u32, s: u32) -> Job {
    Job { g, s, t: 0 }
}

fn run(witness: &Arc<Witness>, job: Job) {
    witness.start(job, 1, 1).finish(2);
}

#[test]
fn groups_that_take_turns_in_order_are_fine() {
    let witness = Arc::new(Witness::of_groups(2));
    let first = witness.start(job(0, 0), 1, 10);
    witness.start(job(1, 0), 1, 11).finish(12);
    first.finish(13);
    run(&witness, job(0, 1));
    assert_eq!(witness.verdict(), Ok(()));
    assert_eq!((witness.started(), witness.finished()), (3, 3));
    assert_eq!((witness.first(), witness.last()), (Some(1), 13));
}

#[test]
fn two_of_a_group_at_once_are_found() {
    let witness = Arc::new(Witness::of_groups(1));
    let first = witness.start(job(0, 0), 1, 1);
    witness.start(job(0, 1), 1, 2).finish(3);
    first.finish(4);
    let found = witness.verdict().unwrap_err();
    assert!(found.contains("job 1 began while another ran"), "{found}");
}

#[test]
fn another_attempt_may_repeat_or_run_a_dropped_job() {
    for witness in [Witness::of_groups(1), Witness::of_plain(10)].map(Arc::new) {
        run(&witness, job(0, 0));
        witness.start(job(0, 0), 2, 3).finish(4);
        assert_eq!((witness.finished(), witness.repeated()), (1, 1));
        drop(witness.start(job(0, 1), 1, 5));
        assert_eq!((witness.started(), witness.finished()), (1, 1));
        witness.start(job(0, 1), 2, 6).finish(7);
        assert_eq!((witness.finished(), witness.repeated()), (2, 1));
        assert_eq!(witness.verdict(), Ok(()));
    }
}

#[test]
fn a_job_lost_by_another_processor_is_no_violation() {
    let witness = Arc::new(Witness::of_groups(1));
    witness.start(job(7, 0), 2, 1).finish(2);
    assert_eq!((witness.finished(), witness.repeated(), witness.strangers()), (0, 1, 1));
    assert_eq!(witness.verdict(), Ok(()));
    witness.start(job(7, 1), 1, 3).finish(4);
    assert!(witness.verdict().is_err());
}

#[test]
fn jobs_that_change_places_are_found() {
    let witness = Arc::new(Witness::of_groups(1));
    for s in [0, 2, 1] {
        run(&witness, job(0, s));
    }
    let found = witness.verdict().unwrap_err();
    assert!(found.contains("job 2 came, 1 was next"), "{found}");
}

#[test]
fn a_job_that_runs_twice_is_found() {
    for witness in [Witness::of_groups(1), Witness::of_plain(100)].map(Arc::new) {
        run(&witness, job(0, 0));
        assert_eq!(witness.verdict(), Ok(()));
        run(&witness, job(0, 0));
        assert!(witness.verdict().is_err());
    }
}

#[test]
fn jobs_without_a_group_come_in_any_order_but_none_from_nowhere() {
    let witness = Arc::new(Witness::of_plain(100));
    for s in [99, 0, 64, 63] {
        run(&witness, job(0, s));
    }
    assert_eq!(witness.verdict(), Ok(()));
    run(&witness, job(0, 1_000));
    assert!(witness.verdict().is_err());
}

#[test]
fn a_percentile_is_a_value_that_was_measured() {
    let mut values: Vec<u32> = (1..=100).rev().collect();
    assert_eq!(percentile(&mut values, 500), Some(50));
    assert_eq!(percentile(&mut values, 950), Some(95));
    assert_eq!(percentile(&mut values, 990), Some(99));
    assert_eq!(percentile(&mut values, 1000), Some(100));
    assert_eq!(percentile(&mut [7], 500), Some(7));
    assert_eq!(percentile(&mut [7, 9], 990), Some(9));
    assert_eq!(percentile::<u32>(&mut [], 500), None);
}

#[test]
fn a_median_is_not_moved_by_one_outlier() {
    assert!((median(&mut [3.0, 1_000.0, 2.0]) - 3.0).abs() < f64::EPSILON);
    assert!(median(&mut []).is_nan());
}

#[test]
fn a_rate_of_no_time_is_none() {
    assert!((rate(10, Duration::from_secs(2)) - 5.0).abs() < f64::EPSILON);
    assert!(rate(10, Duration::ZERO).abs() < f64::EPSILON);
}

#[test]
fn the_ends_of_a_run_are_told_apart() {
    // 10 a second, and from the sixth second on 1.
    let samples: Vec<_> = (0..=10_u64)
        .map(|second| (Duration::from_secs(second), second.min(5) * 10 + second.saturating_sub(5)))
        .collect();
    assert_eq!(ends(&samples, Duration::from_secs(4)), (10.0, 1.0));
    assert_eq!(ends(&samples, Duration::from_mins(1)).0, 5.5);
    assert!(ends(&[], Duration::ZERO).0.is_nan());
}

#[test]
fn a_table_has_columns_as_wide_as_their_widest_cell() {
    let line =
        |hold: &str, rate: &str| vec![("hold", hold.to_owned()), ("jobs/s", rate.to_owned())];
    let expected = "\
|        hold | jobs/s |
|------------:|-------:|
| transaction |      5 |
|       lease | 12.0 k |
";
    assert_eq!(table(&[line("transaction", "5"), line("lease", "12.0 k")]), expected);
    assert_eq!(table(&[]), "");
}

#[test]
fn numbers_are_written_with_three_digits() {
    let written = [0.1234, 5.678, 56.78, 567.8, 5_678.0, 56_780.0, 567_800.0, f64::NAN];
    let expected = ["0.12", "5.68", "56.8", "568", "5678", "56.8 k", "568 k", "-"];
    assert_eq!(written.map(short), expected);
}

#[test]
fn a_skewed_backlog_puts_every_second_job_into_one_group() {
    let statement = load(Groups::Skewed(4));
    for expected in [
        "case when i % 2 = 0 then 0 else 1 + i / 2 % 3 end as g",
        "case when i % 2 = 0 then i / 2 else i / 2 / 3 end as s",
    ] {
        assert!(statement.contains(expected), "{statement}");
    }
}

#[test]
fn only_jobs_with_a_group_are_flagged() {
    assert!(load(Groups::Even(10)).contains("i - $3::bigint < 10"));
    assert!(load(Groups::Plain).contains("'t', 0), false from"));
}

//! Configurations, each explored in full.

use super::Batch;
use crate::checks::{explore, is_deep};

pub fn batch(jobs: usize, looks: usize) -> Batch {
    Batch { jobs, looks, may_fail: false, retries: 0, symmetric: false, mutation: None }
}

/// A batch whose follow-up needs successes.
pub fn fails(jobs: usize, looks: usize) -> Batch {
    Batch { may_fail: true, retries: 1, ..batch(jobs, looks) }
}

fn check(name: &str, model: &Batch) {
    explore(name, model, &Batch { symmetric: true, ..model.clone() });
}

#[test]
fn batches_of_any_jobs_and_looks() {
    check("no job", &batch(0, 2));
    check("one job", &batch(1, 2));
    check("two jobs", &batch(2, 2));
    check("three jobs", &batch(3, 2));
}

#[test]
fn batches_whose_jobs_fail_and_run_again() {
    check("one job", &fails(1, 2));
    check("two jobs", &fails(2, 2));
}

#[test]
fn larger_bounds_of_batches() {
    if !is_deep() {
        return;
    }
    check("three jobs that may fail", &fails(3, 2));
}

//! The time slice of a turn: how long a group keeps its slot, and how many jobs that likely is.
//!
//! A claim names as many jobs of a group as the slice is likely to last for, and reads their data.
//! A job that the turn does not come to was not written: the end of the turn gives it back.
//!
//! Tests: `time_slices::*`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds the jobs of a turn: their data is read by one claim.
const MAX_JOBS: u128 = 100;
/// What a job is thought to take before one has ended: longer than the default slice, so that no
/// other job is claimed with it.
const UNKNOWN: Duration = Duration::from_millis(20);
/// A slow job counts as so many slices at most, or it would shorten the turns of many quick ones.
const SLOWEST: u32 = 4;

/// What a queue's jobs take in this process, and the slice of its turns.
#[derive(Debug)]
pub(crate) struct TimeSlice {
    slice: Duration,
    /// A mean of the last jobs in nanoseconds, in which each next one has a quarter; 0: unknown.
    mean: AtomicU64,
}

impl TimeSlice {
    pub(crate) fn new(slice: Duration) -> Self {
        Self { slice, mean: AtomicU64::new(0) }
    }

    /// Records what a job took.
    pub(crate) fn record(&self, took: Duration) {
        let took = took.min(self.slice * SLOWEST).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX).max(1);
        // A lost update costs nothing but a little precision.
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => took,
            mean => mean - mean / 4 + took / 4,
        };
        self.mean.store(mean, Ordering::Relaxed);
    }

    /// Returns how many jobs of a group a claim takes for one turn.
    pub(crate) fn jobs(&self) -> usize {
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => UNKNOWN.as_nanos(),
            mean => u128::from(mean),
        };
        let jobs = self.slice.as_nanos().div_ceil(mean).clamp(1, MAX_JOBS);
        usize::try_from(jobs).unwrap_or(1)
    }

    /// Returns whether a turn that has taken so long goes on.
    pub(crate) fn lasts(&self, so_far: Duration) -> bool {
        so_far < self.slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_turn_has_as_many_jobs_as_its_slice_is_likely_to_last_for() {
        let slice = TimeSlice::new(5 * MS);
        assert_eq!(slice.jobs(), 1, "nothing is known");
        slice.record(MS);
        assert_eq!(slice.jobs(), 5);
        (0..20).for_each(|_| slice.record(MS / 10));
        assert!((45..=60).contains(&slice.jobs()), "{}", slice.jobs());
        (0..40).for_each(|_| slice.record(Duration::ZERO));
        assert_eq!(slice.jobs(), 100);
        (0..4).for_each(|_| slice.record(20 * MS));
        assert_eq!(slice.jobs(), 1);
    }

    #[test]
    fn a_slow_job_is_soon_forgotten() {
        let slice = TimeSlice::new(5 * MS);
        (0..9).for_each(|_| slice.record(MS));
        slice.record(10_000 * MS);
        assert_eq!(slice.jobs(), 1);
        (0..9).for_each(|_| slice.record(MS));
        assert!(slice.jobs() >= 3, "{}", slice.jobs());
    }

    #[test]
    fn a_slice_of_nothing_is_one_job() {
        let slice = TimeSlice::new(Duration::ZERO);
        (0..3).for_each(|_| slice.record(MS));
        assert_eq!(slice.jobs(), 1);
        assert!(!slice.lasts(Duration::ZERO));
    }
}

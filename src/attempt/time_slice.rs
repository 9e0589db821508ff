//! The time slice of a turn: how long a group keeps its slot, and how many jobs that likely is.
//!
//! A slice counts what handlers take, not the settles and holds between them: a server under load
//! would make turns shorter, and so have more to do. A claim names as many jobs of a group as the
//! slice is likely to last for, and reads their data. A job that the turn does not come to was not
//! written: the end of the turn gives it back.
//!
//! Tests: `time_slices::*`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds the jobs of a turn: their data is read by one claim.
const MAX_JOBS: u128 = 100;
/// Bounds a turn with all that is between its handlers, in slices: other groups wait.
const WHOLE_TURN: u32 = 4;
/// The assumed time of a job before one has ended: longer than the default slice, so that no other
/// job is claimed with it.
const UNKNOWN: Duration = Duration::from_millis(20);
/// A slower job counts as this or as a whole turn, whichever is longer: or it would shorten the
/// turns of many quick ones.
const SLOWEST: Duration = Duration::from_millis(40);

/// The time that a queue's jobs take in this process, and the slice of its turns.
#[derive(Debug)]
pub(crate) struct TimeSlice {
    slice: Duration,
    handler: Mean,
    whole: Mean,
}

/// A mean of the last times in nanoseconds, in which each next one has a quarter; 0: unknown.
#[derive(Debug, Default)]
struct Mean(AtomicU64);

impl Mean {
    fn record(&self, took: Duration) {
        let took = took.as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX).max(1);
        // A lost update costs nothing but a little precision.
        let mean = match self.0.load(Ordering::Relaxed) {
            0 => took,
            mean => mean - mean / 4 + took / 4,
        };
        self.0.store(mean, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        let mean = self.0.load(Ordering::Relaxed);
        (mean > 0).then(|| Duration::from_nanos(mean))
    }
}

impl TimeSlice {
    pub(crate) fn new(slice: Duration) -> Self {
        Self { slice, handler: Mean::default(), whole: Mean::default() }
    }

    /// Records what the handler of a job took, and the job as a whole.
    pub(crate) fn record(&self, handler: Duration, whole: Duration) {
        let slowest = SLOWEST.max(self.slice * WHOLE_TURN);
        self.handler.record(handler.min(slowest));
        self.whole.record(whole.min(slowest));
    }

    /// Returns how many jobs of a group a claim takes for one turn.
    pub(crate) fn jobs(&self) -> usize {
        let fit = |time: Duration, mean: &Mean| {
            time.as_nanos().div_ceil(mean.get().unwrap_or(UNKNOWN).as_nanos())
        };
        let jobs = fit(self.slice, &self.handler).min(fit(self.slice * WHOLE_TURN, &self.whole));
        usize::try_from(jobs.clamp(1, MAX_JOBS)).unwrap_or(1)
    }

    /// Returns whether a turn goes on whose handlers have taken `handled`, and that has taken
    /// `so_far` as a whole.
    pub(crate) fn lasts(&self, handled: Duration, so_far: Duration) -> bool {
        handled < self.slice && so_far < self.slice * WHOLE_TURN
    }

    /// Returns whether handlers lately took less than `limit`; false before one has ended.
    pub(crate) fn is_quicker_than(&self, limit: Duration) -> bool {
        self.handler.get().is_some_and(|mean| mean < limit)
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
        assert!(!slice.is_quicker_than(20 * MS));
        slice.record(MS, 2 * MS);
        assert_eq!(slice.jobs(), 5);
        (0..20).for_each(|_| slice.record(MS / 10, MS / 5));
        assert!((45..=60).contains(&slice.jobs()), "{}", slice.jobs());
        (0..40).for_each(|_| slice.record(Duration::ZERO, Duration::ZERO));
        assert_eq!(slice.jobs(), 100);
        (0..4).for_each(|_| slice.record(20 * MS, 20 * MS));
        assert_eq!(slice.jobs(), 1);
    }

    #[test]
    fn a_turn_ends_by_its_handlers_time_and_by_four_slices_in_all() {
        let slice = TimeSlice::new(5 * MS);
        assert!(slice.lasts(4 * MS, 19 * MS));
        assert!(!slice.lasts(5 * MS, 5 * MS));
        assert!(!slice.lasts(MS, 20 * MS));
        (0..20).for_each(|_| slice.record(MS / 10, 2 * MS));
        assert_eq!(slice.jobs(), 10, "more would not be begun");
        assert!(slice.is_quicker_than(MS));
    }

    #[test]
    fn a_slow_job_is_soon_forgotten() {
        let slice = TimeSlice::new(5 * MS);
        (0..9).for_each(|_| slice.record(MS, MS));
        slice.record(10_000 * MS, 10_000 * MS);
        assert_eq!(slice.jobs(), 1);
        (0..9).for_each(|_| slice.record(MS, MS));
        assert!(slice.jobs() >= 3, "{}", slice.jobs());
    }

    #[test]
    fn a_long_slice_has_no_more_slow_jobs_than_fit() {
        let slice = TimeSlice::new(50_000 * MS);
        slice.record(10_000 * MS, 10_000 * MS);
        assert_eq!(slice.jobs(), 5);
    }

    #[test]
    fn a_slice_of_nothing_is_one_job() {
        let slice = TimeSlice::new(Duration::ZERO);
        (0..3).for_each(|_| slice.record(MS, MS));
        assert_eq!(slice.jobs(), 1);
        assert!(!slice.lasts(Duration::ZERO, Duration::ZERO));
    }
}

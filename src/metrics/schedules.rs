//! The count of jobs that schedules made.

use crate::metrics::facade::{ENABLED, counter};
use crate::metrics::names::SCHEDULE_JOBS;

/// Counts jobs that this process made for schedules.
pub(crate) fn record_schedule_jobs(jobs: u64) {
    if ENABLED {
        counter(&SCHEDULE_JOBS, &[]).increment(jobs);
    }
}

//! The count of receives.

use crate::metrics::facade::{ENABLED, counter};
use crate::metrics::label::label;
use crate::metrics::names::RECEIVES;

/// Counts a receive that brought so many jobs.
pub(crate) fn record_receive(queue: &str, jobs: usize) {
    if ENABLED {
        let result = if jobs == 0 { "empty" } else { "jobs" };
        counter(&RECEIVES, &[("queue", label(queue)), ("result", result)]).increment(1);
    }
}

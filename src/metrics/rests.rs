//! The count of rests.

use crate::metrics::facade::{ENABLED, counter};
use crate::metrics::label::label;
use crate::metrics::names::RESTS;

/// Counts a rest of a job's group, or of its whole queue.
pub(crate) fn record_rest(queue: &str, whole_queue: bool) {
    if ENABLED {
        let what = if whole_queue { "queue" } else { "group" };
        counter(&RESTS, &[("queue", label(queue)), ("what", what)]).increment(1);
    }
}

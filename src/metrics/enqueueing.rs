//! The count of enqueues.

use std::collections::BTreeMap;

use crate::metrics::facade::{ENABLED, counter};
use crate::metrics::label::label;
use crate::metrics::names::JOBS_ENQUEUED;

/// Jobs that are being enqueued, by their queues.
#[derive(Debug)]
pub(crate) struct Enqueueing(Vec<String>);

impl Enqueueing {
    pub(crate) fn new<'a>(queues: impl IntoIterator<Item = &'a str>) -> Self {
        if !ENABLED {
            return Self(Vec::new());
        }
        Self(queues.into_iter().map(str::to_owned).collect())
    }

    /// Counts jobs that were inserted, or were duplicates: in the order in which they were given.
    pub(crate) fn record(self, duplicates: impl IntoIterator<Item = bool>) {
        if !ENABLED {
            return;
        }
        let mut counts: BTreeMap<(String, bool), u64> = BTreeMap::new();
        for job in self.0.into_iter().zip(duplicates) {
            *counts.entry(job).or_default() += 1;
        }
        for ((queue, duplicate), jobs) in counts {
            count(&queue, if duplicate { "duplicate" } else { "enqueued" }, jobs);
        }
    }

    /// Counts jobs that did not pass their checks.
    pub(crate) fn record_refused(self) {
        self.0.iter().for_each(|queue| count(queue, "refused", 1));
    }
}

fn count(queue: &str, result: &str, jobs: u64) {
    counter(&JOBS_ENQUEUED, &[("queue", label(queue)), ("result", result)]).increment(jobs);
}

//! The label `queue`, bounded: a scrape must not grow with names that a program makes up.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::job::name::check_queue;
use crate::metrics::facade::ENABLED;

/// How many queues have a label of their own.
const QUEUES: usize = 200;
/// The label of all others, and of names that no queue can have.
const OTHER: &str = "other";

#[derive(Debug, Default)]
struct Known(Option<HashSet<String>>);

static KNOWN: Mutex<Known> = Mutex::new(Known(None));

impl Known {
    fn admits(&mut self, queue: &str) -> bool {
        let known = self.0.get_or_insert_default();
        known.contains(queue)
            || known.len() < QUEUES && check_queue(queue).is_ok() && known.insert(queue.to_owned())
    }
}

/// Returns the label of a queue.
pub(crate) fn label(queue: &str) -> &str {
    // Nothing panics under the lock.
    let admits = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner).admits(queue);
    if ENABLED && admits() { queue } else { OTHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_queues_have_a_label_and_they_keep_it() {
        let mut known = Known::default();
        assert!(!known.admits(""), "no queue has this name");
        assert!((0..QUEUES).all(|n| known.admits(&format!("q{n}"))));
        assert!(!known.admits("one more"));
        assert!(known.admits("q0") && known.admits("q199"));
    }
}

//! Broken promises.

use std::collections::BTreeMap;
use std::fmt;

use crate::event::Time;

/// A promise of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// Jobs of a group run in order.
    P1,
    /// They run one at a time.
    P2,
    /// No job is lost.
    P3,
    /// The effects of a success are there exactly once.
    P4,
    /// Attempts are counted before they begin.
    P9,
    /// A stale worker does no harm.
    P10,
    /// No more jobs of a queue, and groups of a limit key, run at once than the limit says.
    Limit,
    /// No span of time has more starts than its part of the rate, the burst and one more.
    Rate,
    /// A batch starts one follow-up, behind its jobs.
    Batch,
    /// A schedule makes one job for each due time.
    Schedule,
}

/// A broken promise, and where its story is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub promise: Promise,
    /// How it was broken, in a sentence.
    pub what: String,
    /// The jobs that it is about, by their index.
    pub jobs: Vec<usize>,
    /// When it shows.
    pub at: Time,
}

/// The first violations of each promise, and their number.
#[derive(Debug, Default)]
pub struct Violations {
    /// The first of each promise.
    pub kept: Vec<Violation>,
    /// The number of all.
    pub counts: BTreeMap<Promise, usize>,
}

/// Bounds the violations that are kept: a broken queue breaks its promise for every job, and the
/// first few tell as much.
const KEPT: usize = 10;

impl Violations {
    /// Adds a violation. Calls `what` only if the violation is kept.
    pub(crate) fn add(
        &mut self,
        promise: Promise,
        at: Time,
        jobs: Vec<usize>,
        what: impl FnOnce() -> String,
    ) {
        let count = self.counts.entry(promise).or_default();
        *count += 1;
        if *count <= KEPT {
            self.kept.push(Violation { promise, what: what(), jobs, at });
        }
    }

    /// Returns whether no promise is broken.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P1 => "P1 order",
            Self::P2 => "P2 one at a time",
            Self::P3 => "P3 nothing lost",
            Self::P4 => "P4 exactly once",
            Self::P9 => "P9 attempts are counted",
            Self::P10 => "P10 a stale worker does no harm",
            Self::Limit => "Limit of what runs at once",
            Self::Rate => "Rate of starts",
            Self::Batch => "Batch with one follow-up",
            Self::Schedule => "Schedule with one job for each time",
        })
    }
}

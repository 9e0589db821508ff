//! Checks a history of a queue: enqueues, runs and their results, with their times.
//!
//! It decides whether jobs of a group ran in order (P1), one at a time (P2), whether any was lost
//! (P3), whether effects are there exactly once (P4, P10) and attempts were counted (P9), and
//! whether limits, rates, batches and schedules did what they are for. It reports each
//! violation as a short story. `docs/history.md` has the format, which is that of any queue, and
//! the conclusions from each observation.
//!
//! ```
//! let history = seriatim_history::History::read("{\"event\":\"drained\",\"at\":1}".as_bytes())?;
//! assert!(seriatim_history::check(&history).is_empty());
//! # Ok::<(), seriatim_history::ReadError>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempts;
mod batches;
mod claims;
mod effects;
mod ends;
mod error;
pub mod event;
pub mod history;
mod life;
mod limits;
mod observed;
mod order;
mod overlap;
mod prefix_max;
mod rates;
mod read;
mod report;
mod schedules;
mod story;
mod verdict;
mod violation;
mod words;

pub use error::ReadError;
pub use history::History;
pub use report::report;
pub use story::tell;
pub use violation::{Promise, Violation, Violations};

/// Decides all promises, each in a time that grows with the history as n log n.
pub fn check(history: &History) -> Violations {
    let mut violations = Violations::default();
    order::check(history, &mut violations);
    overlap::check(history, &mut violations);
    ends::check(history, &mut violations);
    effects::check(history, &mut violations);
    attempts::check(history, &mut violations);
    limits::check(history, &mut violations);
    rates::check(history, &mut violations);
    batches::check(history, &mut violations);
    schedules::check(history, &mut violations);
    violations
}

/// The program of the README is compiled and run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

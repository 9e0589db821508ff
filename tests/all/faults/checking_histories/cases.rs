//! Histories with each kind of violation, and next to each what looks like it and is none.
//!
//! One event per line or semicolon: `enqueue JOB GROUP BEGIN END [FIELD=VALUE…]`, with - for no
//! group or no end; `run JOB ATTEMPT PROCESS START END OUTCOME`, with - for an end that was not
//! seen; `made` as `enqueue`; the others as in `docs/history.md`.

use super::{features, order, outcomes};

/// The subject, the history, and the promises that it breaks.
pub type Case = (&'static str, &'static str, &'static [&'static str]);

pub fn cases() -> impl Iterator<Item = &'static Case> {
    order::CASES.iter().chain(outcomes::CASES).chain(features::CASES)
}

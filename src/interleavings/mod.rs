//! Races as scripted interleavings of real sessions, against the internal functions and tables.
//!
//! Each test first shows that a wrong variant of a statement breaks, and then that the crate's own
//! functions do not break in the same place. No script waits for time: it continues when a lock
//! wait is seen, a statement has returned or a transaction has committed. A statement that must not
//! wait ends in its session's `lock_timeout` if it does. Tests of the public interface belong in
//! `tests/all`, and parts that scripts share in `support`.

// A test states its expectations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batches;
mod checkpoints;
mod cost;
mod crossing;
mod dead_letters;
mod dead_rows;
mod deep_batches;
mod fence;
mod followers;
mod heads;
mod late_commits;
mod limit_key_races;
mod limit_keys;
mod limits;
mod new_groups;
mod operators;
mod pauses;
mod plans;
mod prefetch;
mod presence;
mod producers;
mod receipts;
mod requests;
mod rests;
mod retire;
mod schedules;
mod silent;
mod simple_claims;
mod skip_locked;
mod stress;
mod strict;
mod support;
mod suspicion;
mod sweeps;
mod unique_keys;
mod upgrades;
mod verbs;
mod wake_ups;
mod worst_backlogs;

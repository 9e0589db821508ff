//! Races as scripted interleavings of real sessions.
//!
//! Each test first shows that a wrong variant of a statement breaks, written out in the test against the same tables,
//! and then that the crate's own functions do not break in the same place. Nothing waits for time: a script goes on
//! when a lock is seen waiting, when a statement has returned or when a transaction has committed. A statement that
//! waits although it must not never returns to the script, and ends in its session's `lock_timeout`.

// A test says what it expects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chain;
mod cost;
mod crossing;
mod dead_rows;
mod deep_batches;
mod fence;
mod followers;
mod heads;
mod late_commits;
mod limits;
mod new_groups;
mod pauses;
mod plans;
mod prefetch;
mod presence;
mod producers;
mod requests;
mod retire;
mod skip_locked;
mod support;
mod suspicion;
mod upgrades;
mod wake_ups;

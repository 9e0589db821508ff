//! How many jobs of each queue may run in this process.
//!
//! `fair_share` is pure and decides which queue gets a shared slot; `queue_slots` counts and hands
//! them out. It uses nothing else of the crate. Which job gets a slot is decided in `worker`.

mod fair_share;
pub(crate) mod queue_slots;

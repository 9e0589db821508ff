//! How many jobs of each queue may run in this process.
//!
//! It uses nothing of the crate. Which job gets a slot is decided in `worker`.

pub(crate) mod fair_share;
pub(crate) mod queue_slots;

//! One claimed turn: hold, handle, decide, settle.
//!
//! It uses `liveness`, `store`, `slots` and `job`. Claims, and which turn runs in which slot,
//! belong in `worker`.

pub(crate) mod active_job;
mod by_kind;
pub(crate) mod connection;
mod ended;
pub(crate) mod event;
mod failure;
pub(crate) mod handler;
mod hold;
pub(crate) mod kinds;
pub(crate) mod layer;
mod leased_turn;
mod lost;
pub(crate) mod panics;
pub(crate) mod rehearse;
pub(crate) mod release;
mod reports;
mod rest;
mod run;
mod run_caught;
mod settle;
pub(crate) mod settle_batch;
mod settle_late;
pub(crate) mod suppressed;
mod time_slice;
pub(crate) mod turn;

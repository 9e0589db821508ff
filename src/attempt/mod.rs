//! One claimed turn: hold, handle, decide, settle.
//!
//! It uses `liveness`, `store`, `slots` and `job`. Claims, and which turn runs in which slot,
//! belong in `worker`.

pub(crate) mod active_job;
pub(crate) mod connection;
pub(crate) mod ended;
pub(crate) mod event;
pub(crate) mod failure;
pub(crate) mod handler;
pub(crate) mod hold;
pub(crate) mod layer;
pub(crate) mod leased_turn;
pub(crate) mod lost;
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod settle;
pub(crate) mod settle_batch;
pub(crate) mod settle_late;
pub(crate) mod time_slice;
pub(crate) mod turn;

//! What is done at intervals for all queues: retention, halts that end, the sweep, forgotten requests.
//!
//! One process at a time does it (a leader lock). It uses `store`, `liveness` and `job`.
//! What must happen at once belongs in `worker`.

pub(crate) mod maintenance;

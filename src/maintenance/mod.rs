//! Periodic work for all queues: requests about queued jobs, ends of halts, move tasks, schedules,
//! flags of receivers' queues, retention, the sweep.
//!
//! One process at a time does it (a leader lock); move tasks and schedules, any. `maintenance` has
//! the tick, every other file one duty. The folder uses `liveness`, `store`, `error` and `job`.
//! Work that must happen at once belongs in `worker`.

mod halts;
mod leader;
pub(crate) mod maintenance;
mod move_tasks;
mod requests;
mod retention;
pub(crate) mod schedules;
mod sweep;
mod tidy;
mod unserved;

//! Periodic work for all queues: requests about queued jobs, ends of halts, move tasks, schedules,
//! batches, flags of receivers' queues, retention, the sweep.
//!
//! One process at a time does it (a leader lock); move tasks, schedules and batches, any.
//! `maintenance` has the tick, every other file one duty. The folder uses `liveness`, `store`,
//! `error` and `job`. Work that must happen at once belongs in `worker`.

pub(crate) mod batches;
mod halts;
mod leader;
pub(crate) mod maintenance;
mod move_tasks;
mod queues;
pub(crate) mod requests;
mod retention;
pub(crate) mod schedules;
mod silent;
mod tidy;
mod unserved;

//! The calls of an application: enqueue, receive, inspect, explain, cancel, and maintenance.
//!
//! Each call is one method of [`Client`](crate::Client), works without a processor, and is in the
//! file of its noun. The changes of an operator are in `operator`. All use `maintenance`, `store`
//! and `job`. SQL belongs in `store`.

mod batches;
pub(crate) mod cancel;
pub(crate) mod client;
pub(crate) mod enqueue;
mod explain;
mod inspect;
mod maintenance;
mod metrics;
mod move_tasks;
mod operations;
pub(crate) mod operator;
mod overview;
pub(crate) mod receive;
mod rehearse;
mod schedules;
mod settings;
pub(crate) mod shards;

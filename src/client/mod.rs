//! The calls of an application: enqueue, receive, inspect, explain, and an operator's commands.
//!
//! Each call is one method of [`Client`](crate::Client), works without a processor, and is in the
//! file of its noun. It uses `maintenance`, `store` and `job`. SQL belongs in `store`.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod enqueue;
mod explain;
mod inspect;
mod maintenance;
mod metrics;
pub(crate) mod move_jobs;
mod move_tasks;
pub(crate) mod node;
mod operations;
mod overview;
mod park;
mod pause;
pub(crate) mod purge;
pub(crate) mod receive;
pub(crate) mod redrive;
mod settings;

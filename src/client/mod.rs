//! The calls of an application: enqueue, receive, inspect, explain, and an operator's commands.
//!
//! Each call is one method of [`Client`](crate::Client), and works without a processor.
//! It uses `maintenance`, `store` and `job`. SQL belongs in `store`.

pub(crate) mod client;
pub(crate) mod explain;
pub(crate) mod park;
pub(crate) mod pause;
pub(crate) mod receive;
pub(crate) mod redrive;

//! A processor: its settings, its start, and its shutdown.
//!
//! It uses every folder below it. It starts the tasks and contains no rule of the protocol.

pub(crate) mod builder;
mod check;
mod config;
pub(crate) mod health;
pub(crate) mod listener;
mod monitor_thread;
mod pool_needs;
pub(crate) mod processor;
pub(crate) mod running;
mod server;
mod spawn;
mod start_line;
mod stored;

//! The changes of an operator, each recorded in the table `operation` with who made it and why.
//!
//! Each is one method of [`Operator`](crate::admin::Operator), in the file of its noun, and works
//! without a processor. Reads are methods of [`Client`](crate::Client).

mod act;
mod batches;
pub(crate) mod jobs;
pub(crate) mod move_jobs;
mod move_tasks;
pub(crate) mod node;
pub(crate) mod operator;
mod park;
mod pause;
pub(crate) mod purge;
pub(crate) mod redrive;
mod schedules;
mod settings;

//! Statements of operators and of maintenance: settings, pauses, halts, cancels, dead letters,
//! retention.
//!
//! They wait for no handler. A worker's statements for each job do not belong here.

pub(crate) mod batches;
pub(crate) mod control;
pub(crate) mod move_jobs;
pub(crate) mod move_tasks;
pub(crate) mod park;
pub(crate) mod pause;
pub(crate) mod policy;
pub(crate) mod prune;
pub(crate) mod purge;
pub(crate) mod queue_settings;
pub(crate) mod redrive;
pub(crate) mod schedules;

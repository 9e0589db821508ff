//! Statements of operators and of maintenance: settings, pauses, halts, cancels, dead letters,
//! retention.
//!
//! They wait for no handler. A worker's statements for each job do not belong here.

pub(in crate::store) mod control;
pub(in crate::store) mod move_jobs;
pub(in crate::store) mod move_tasks;
pub(in crate::store) mod park;
pub(in crate::store) mod pause;
pub(in crate::store) mod policy;
pub(in crate::store) mod prune;
pub(in crate::store) mod purge;
pub(in crate::store) mod queue_settings;
pub(in crate::store) mod redrive;

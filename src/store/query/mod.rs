//! Reads for people and dashboards. Nothing here takes a lock.

pub(in crate::store) mod explain;
pub(in crate::store) mod inspect;

//! Reads for people and dashboards. Nothing here takes a lock.

pub(in crate::store) mod explain;
#[cfg(feature = "testing")]
pub(in crate::store) mod for_tests;
pub(in crate::store) mod inspect;

//! Reads for operators and dashboards. Nothing here takes a lock, and no read grows with the
//! history.

pub(in crate::store) mod explain;
#[cfg(feature = "testing")]
pub(in crate::store) mod for_tests;
pub(in crate::store) mod inspect;
pub(in crate::store) mod metrics;
pub(in crate::store) mod operations;
pub(in crate::store) mod overview;

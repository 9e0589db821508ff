//! Reads for operators and dashboards. Nothing here takes a lock, and no read grows with the
//! history.

pub(crate) mod explain;
#[cfg(feature = "testing")]
pub(crate) mod for_tests;
pub(crate) mod inspect;
pub(crate) mod metrics;
pub(crate) mod minutes;
pub(crate) mod operations;
pub(crate) mod overview;
pub(crate) mod recent;
pub(crate) mod rehearse;
pub(crate) mod unserved;

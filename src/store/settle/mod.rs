//! Settle: record what came of a run, and pass the turn on.

pub(in crate::store) mod many;
pub(in crate::store) mod one;

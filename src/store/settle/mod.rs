//! Settle: record what came of a turn's jobs, and pass the turn.

pub(in crate::store) mod keep;
pub(in crate::store) mod many;
pub(in crate::store) mod one;
pub(in crate::store) mod quick;
pub(in crate::store) mod turn;

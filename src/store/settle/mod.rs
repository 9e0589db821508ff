//! Settle: record what came of a turn's jobs, and pass the turn.

pub(crate) mod keep;
pub(crate) mod many;
pub(crate) mod one;
pub(crate) mod quick;
pub(crate) mod turn;

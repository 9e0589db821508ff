//! One queue in one process: wait, claim, start.
//!
//! It uses `attempt` and everything below it. What happens inside of a slot belongs in `attempt`.

pub(crate) mod claim;
pub(crate) mod connections;
pub(crate) mod cursor;
pub(crate) mod fill;
pub(crate) mod orphans;
pub(crate) mod prefetch;
pub(crate) mod recheck;
pub(crate) mod release;
pub(crate) mod worker;

//! How a loss is noticed: of a session, a lease, a process, the server, or of progress.
//!
//! The monitor, the presence and the failure detector run in a thread of their own, so that
//! blocking handlers cannot delay them. The watchdog has another one. This folder uses `store` and
//! `job`. The effect of a lost hold on its job belongs in `attempt`.

pub(crate) mod blocked;
pub(crate) mod context;
mod failure_detector;
pub(crate) mod heartbeat;
pub(crate) mod leases;
mod log_throttle;
pub(crate) mod pooler;
mod pooler_state;
pub(crate) mod presence;
mod read_only;
pub(crate) mod schema_check;
mod schema_gate;
pub(crate) mod sessions;
pub(crate) mod shared_poll;
pub(crate) mod shutdown;
pub(crate) mod side_pool;
pub(crate) mod side_reports;
pub(crate) mod supervised;
pub(crate) mod vitals;
pub(crate) mod watchdog;

//! Metrics of this process, through a facade; without the feature, each call compiles to nothing.
//!
//! A count is made behind the commit that makes it true. No group, job or reference is a label.

pub(crate) mod background;
pub(crate) mod enqueueing;
mod facade;
mod label;
mod names;
pub(crate) mod queue;
pub(crate) mod receives;
pub(crate) mod rests;
pub(crate) mod schedules;
pub(crate) mod slots;

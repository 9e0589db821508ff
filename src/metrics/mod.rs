//! Metrics of this process, through the facade `metrics`. Without the feature of that name, each
//! call of this folder compiles to nothing.
//!
//! The feature is named in `facade.rs` alone, and each metric in `names.rs`. A count is made behind
//! the commit that makes it true. No group, job or reference is ever a label.

pub(crate) mod background;
pub(crate) mod enqueueing;
mod facade;
mod label;
mod names;
pub(crate) mod queue;
pub(crate) mod receives;
pub(crate) mod slots;

#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod context;
mod inject;
mod layer;

pub use context::extract;
pub use inject::inject;
pub use layer::{OtelLayer, Propagation, layer};

/// The guide's programs are compiled with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/tracing.md")]
struct Guide;

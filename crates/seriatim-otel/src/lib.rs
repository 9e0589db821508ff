#![doc = include_str!("../README.md")]

mod context;
mod inject;
mod layer;

pub use context::extract;
pub use inject::inject;
pub use layer::{OtelLayer, Propagation, layer};

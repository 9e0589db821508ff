//! Shared parts of the scripts: a scene with its sessions, steps and gates, meters of reads, and
//! the stress with its producers, workers and oracle. No test lives here, and nothing outside of
//! `interleavings` uses it.

mod gates;
pub(super) mod meter;
pub(super) mod oracle;
pub(super) mod producers;
pub(super) mod scene;
pub(super) mod session;
pub(super) mod shapes;
#[path = "../../../tests/all/support/size.rs"]
pub(super) mod size;
pub(super) mod steps;
pub(super) mod stress;
pub(super) mod workers;

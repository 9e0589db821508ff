//! Scenes, workers and producers of the interleavings, and the oracle that judges them.

pub(super) mod oracle;
pub(super) mod producers;
pub(super) mod scene;
pub(super) mod stress;
pub(super) mod workers;

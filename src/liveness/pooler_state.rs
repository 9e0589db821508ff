//! Whether a pooler is between a processor and the server.

use tokio_util::sync::{CancellationToken, DropGuard};

/// Whether a pooler is between a processor and the server, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct PoolerState {
    /// The first detection has ended, also if it failed: then all other statements fail as well.
    pub(crate) detected: CancellationToken,
    /// A transaction pooler is there: a connection has no session of its own.
    pub(crate) pooled: CancellationToken,
    /// A statement pooler is there: no transaction can be had.
    pub(crate) refused: CancellationToken,
}

impl PoolerState {
    /// Returns a guard that lets all waiters go on when dropped.
    pub(crate) fn detection_guard(&self) -> DropGuard {
        self.detected.clone().drop_guard()
    }

    /// Waits for the first detection. Returns whether transactions can be had.
    pub(crate) async fn has_transactions(&self) -> bool {
        self.detected.cancelled().await;
        !self.refused.is_cancelled()
    }

    /// Returns whether it is known what is there.
    pub(crate) fn is_detected(&self) -> bool {
        self.detected.is_cancelled()
    }
}

//! What a processor knows about a pooler between it and the server.

use tokio_util::sync::{CancellationToken, DropGuard};

/// What a processor knows about a pooler between it and the server.
#[derive(Debug, Default)]
pub(crate) struct PoolerState {
    /// The first detection has ended, also if it failed: then all other statements fail as well.
    pub(in crate::liveness) looked: CancellationToken,
    /// A transaction pooler is there: a connection has no session of its own.
    pub(crate) pooled: CancellationToken,
    /// A statement pooler is there: no transaction can be had.
    pub(in crate::liveness) refused: CancellationToken,
}

impl PoolerState {
    /// Returns a guard that lets all waiters go on when dropped.
    pub(crate) fn looking(&self) -> DropGuard {
        self.looked.clone().drop_guard()
    }

    /// Waits for the first detection. Returns whether transactions can be had.
    pub(crate) async fn is_open(&self) -> bool {
        self.looked.cancelled().await;
        !self.refused.is_cancelled()
    }
}

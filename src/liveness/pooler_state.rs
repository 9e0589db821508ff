//! What a processor knows about a pooler between it and the server.

use tokio_util::sync::{CancellationToken, DropGuard};

/// What is known of the way.
#[derive(Debug, Default)]
pub(crate) struct PoolerState {
    /// Somebody has looked. Where the server cannot be reached, whatever else is tried fails as well.
    pub(in crate::liveness) looked: CancellationToken,
    /// A connection has no session of its own.
    pub(crate) pooled: CancellationToken,
    /// There are no transactions.
    pub(in crate::liveness) refused: CancellationToken,
}

impl PoolerState {
    /// Lets everybody go on when it is dropped, with whoever was to look.
    pub(crate) fn looking(&self) -> DropGuard {
        self.looked.clone().drop_guard()
    }

    /// Waits until somebody has looked; whether there is a way at all.
    pub(crate) async fn is_open(&self) -> bool {
        self.looked.cancelled().await;
        !self.refused.is_cancelled()
    }
}

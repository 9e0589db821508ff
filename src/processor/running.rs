//! A running processor, and its shutdown.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::liveness::context::Context;
use crate::liveness::shutdown::ShutdownReport;
use crate::processor::pool_needs::PoolNeed;

/// Bounds the time that released jobs may take after the deadline.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A running processor. Dropping it stops the claims; running jobs end by themselves.
#[must_use = "dropping a Running stops its processor"]
pub struct Running {
    stop: CancellationToken,
    context: Arc<Context>,
    ended: JoinHandle<()>,
    #[allow(dead_code)] // For its drop.
    need: Arc<PoolNeed>,
}

impl Running {
    pub(in crate::processor) fn new(
        stop: CancellationToken,
        context: Arc<Context>,
        need: Arc<PoolNeed>,
        ended: JoinHandle<()>,
    ) -> Self {
        Self { stop, context, ended, need }
    }

    /// Stops claiming, waits for the running jobs until the deadline, then releases the rest. Their
    /// handlers see [`cancelled`](crate::ActiveJob::cancelled) and are dropped 150 ms later. A
    /// handler that returns `Ok` in that time has finished; all other jobs go back to their place,
    /// and the attempt does not count. That takes 5 s at most.
    ///
    /// A handler that blocks its thread cannot be dropped. It counts as
    /// [`still_running`](ShutdownReport::still_running), its job stays its own until the process
    /// ends, and a runtime that is dropped waits for it. With a [`Watchdog`](crate::Watchdog) the
    /// process ends all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, claims stop and running jobs end by themselves, as if this
    /// `Running` was dropped.
    pub async fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        let before = self.context.counters.totals();
        self.stop.cancel();
        // A shutdown happens once.
        let _ = self.context.deadline.set(deadline);
        if timeout(deadline, &mut self.ended).await.is_err() {
            self.context.release.cancel();
            // Jobs that do not end now are reported as still running.
            let _ = timeout(RELEASE_LIMIT, &mut self.ended).await;
        }
        self.context.counters.since(&before)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

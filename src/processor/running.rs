//! A running processor, and its shutdown.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::liveness::shutdown::ShutdownReport;
use crate::processor::health::{Health, HealthProbe, HealthSource};
use crate::processor::pool_needs::PoolNeed;

/// Bounds the time that released jobs may take after the deadline.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A running processor. Dropping it stops the claims, with a warning in the log; running jobs end
/// by themselves. [`shutdown`](Self::shutdown) is the way to stop.
#[must_use = "dropping a Running stops its processor"]
pub struct Running {
    probe: HealthProbe,
    ended: JoinHandle<()>,
    /// A shutdown was begun.
    shut_down: bool,
    #[allow(dead_code)] // For their drop.
    needs: Vec<Arc<PoolNeed>>,
}

impl Running {
    pub(crate) fn new(
        servers: Vec<HealthSource>,
        needs: Vec<Arc<PoolNeed>>,
        ended: JoinHandle<()>,
    ) -> Self {
        Self { probe: HealthProbe::new(servers), ended, shut_down: false, needs }
    }

    /// Returns whether it claims jobs and how its parts are, for a readiness probe or a page. Asks
    /// the database nothing, and takes microseconds.
    pub fn health(&self) -> Health {
        self.probe.health()
    }

    /// Returns a handle that reads the same and can be cloned: for the state of a web server.
    pub fn health_probe(&self) -> HealthProbe {
        self.probe.clone()
    }

    /// Returns [`Health::ready`].
    pub fn is_ready(&self) -> bool {
        self.health().ready
    }

    /// Stops claiming, waits for the running jobs until the deadline, then releases the rest. Their
    /// handlers see [`cancelled`](crate::ActiveJob::cancelled) and are dropped 150 ms later. A
    /// handler that returns `Ok` in that time has finished; all other jobs go back to their place,
    /// and the attempt does not count. The release takes 5 s at most.
    ///
    /// A handler that blocks its thread cannot be dropped. It counts as
    /// [`still_running`](ShutdownReport::still_running), its job stays its own until the process
    /// ends, and a runtime that is dropped waits for it. With a
    /// [`Watchdog`](crate::observe::Watchdog) the process ends all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, claims stop and running jobs end by themselves, as if this
    /// `Running` was dropped.
    pub async fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        self.shut_down = true;
        let probe = self.probe.clone();
        let before: Vec<_> = probe.contexts().map(|context| context.counters.totals()).collect();
        for context in probe.contexts() {
            context.stop.cancel();
            // A shutdown happens once.
            let _ = context.deadline.set(deadline);
        }
        if timeout(deadline, &mut self.ended).await.is_err() {
            probe.contexts().for_each(|context| context.release.cancel());
            // Jobs that do not end now are reported as still running.
            let _ = timeout(RELEASE_LIMIT, &mut self.ended).await;
        }
        let counters = probe.contexts().map(|context| &context.counters).zip(&before);
        let report = counters.map(|(counters, before)| counters.since(before)).sum();
        let ShutdownReport { finished, released, lost, still_running } = report;
        tracing::info!(
            target: "seriatim::node",
            finished,
            released,
            lost,
            still_running,
            "the processor has stopped; of the jobs that ran when the shutdown began:"
        );
        report
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.probe.contexts().for_each(|context| context.stop.cancel());
        if !self.shut_down {
            tracing::warn!(
                target: "seriatim::node",
                "a Running was dropped: its processor claims no more jobs, and running ones end by themselves. Keep it, and \
                 call shutdown() to stop"
            );
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

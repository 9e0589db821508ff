//! The counts of a shutdown, and the signal that begins one.

use std::iter::Sum;
use std::sync::atomic::{AtomicU64, Ordering};

/// The outcomes of the jobs that were running when the shutdown began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Ended by themselves, and their outcome was recorded.
    pub finished: u64,
    /// Stopped at the deadline and released; the attempt does not count.
    pub released: u64,
    /// Lost their hold: another worker runs them again.
    pub lost: u64,
    /// Did not stop although they were told to (a handler that blocks its thread, say). Their locks
    /// last until the process ends.
    pub still_running: u64,
}

impl Sum for ShutdownReport {
    fn sum<I: Iterator<Item = Self>>(reports: I) -> Self {
        reports.fold(Self::default(), |sum, report| Self {
            finished: sum.finished + report.finished,
            released: sum.released + report.released,
            lost: sum.lost + report.lost,
            still_running: sum.still_running + report.still_running,
        })
    }
}

/// Numbers of a processor's attempts: running, and ended in each way.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    running: AtomicU64,
    finished: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
    /// Their handlers did not begin: no report has them.
    unbegun: AtomicU64,
}

/// A running attempt. Counts as lost when dropped, unless it is marked otherwise.
#[derive(Debug)]
pub(crate) struct RunningAttempt<'a> {
    counters: &'a Counters,
    ended_as: &'a AtomicU64,
}

impl Counters {
    pub(crate) fn begin(&self) -> RunningAttempt<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        RunningAttempt { counters: self, ended_as: &self.lost }
    }

    /// Returns the totals since `before`.
    pub(crate) fn since(&self, before: &ShutdownReport) -> ShutdownReport {
        let now = self.totals();
        ShutdownReport {
            finished: now.finished - before.finished,
            released: now.released - before.released,
            lost: now.lost - before.lost,
            still_running: now.still_running,
        }
    }

    /// Returns the totals since the start.
    pub(crate) fn totals(&self) -> ShutdownReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        ShutdownReport {
            finished: read(&self.finished),
            released: read(&self.released),
            lost: read(&self.lost),
            still_running: read(&self.running),
        }
    }
}

impl RunningAttempt<'_> {
    pub(crate) fn mark_finished(&mut self) {
        self.ended_as = &self.counters.finished;
    }

    pub(crate) fn mark_released(&mut self) {
        self.ended_as = &self.counters.released;
    }

    pub(crate) fn mark_unbegun(&mut self) {
        self.ended_as = &self.counters.unbegun;
    }
}

impl Drop for RunningAttempt<'_> {
    fn drop(&mut self) {
        self.ended_as.fetch_add(1, Ordering::SeqCst);
        self.counters.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for SIGINT (Ctrl-C) or SIGTERM; on other systems than Unix for Ctrl-C.
///
/// ```no_run
/// # async fn example(running: seriatim::Running) -> std::io::Result<()> {
/// seriatim::shutdown_signal().await?;
/// let report = running.shutdown(std::time::Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The system's, if the signal handlers cannot be set.
pub async fn shutdown_signal() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

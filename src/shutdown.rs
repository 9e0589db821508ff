//! Ending a processor.

/// What became of the jobs that were running when the shutdown began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Ended by themselves, and their outcome was recorded.
    pub finished: u64,
    /// Ended by the deadline and given back; the attempt is not held against them.
    pub released: u64,
    /// Lost their hold: another worker runs them again.
    pub lost: u64,
    /// Did not stop although they were told to (a handler that blocks its thread, say). Their locks last until the
    /// process ends.
    pub still_running: u64,
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

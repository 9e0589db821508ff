//! The loss of a hold, and its effect on the job. No other file decides it.
//!
//! A hold is lost when its session or its lease is lost: the handler is told, and dropped after
//! `WIND_UP`. The attempt has failed, and its failure is recorded by token.
//!
//! A hold is also lost when another worker has taken the claim over. Then nothing may be recorded
//! (P10).

use crate::error::BackgroundError;
use crate::job::job::FailureKind;
use crate::job::outcome::RunResult;
use crate::liveness::context::Context;
use crate::liveness::sessions::Signals;

/// The result of a run whose row locks went with their session.
pub(crate) fn session_lost() -> RunResult {
    let message = "the database session that held the job was lost";
    RunResult::Broken(FailureKind::ConnectionLost, message.to_owned())
}

/// The result of a run whose lease ended, or whose process other processes may suspect.
pub(crate) fn lease_lost() -> RunResult {
    let message = "the lease of the job could not be extended, or its presence could not be proved";
    RunResult::Broken(FailureKind::LeaseLost, message.to_owned())
}

/// Stops the handler of a claim that was taken over, and returns the error of its first `tx()`.
pub(crate) fn taken_over(signals: &Signals) -> sqlx::Error {
    signals.lost.cancel();
    let message = "the claim of this job was taken over by another worker";
    sqlx::Error::Protocol(message.to_owned())
}

/// Reports a lost hold whose failure is still to be recorded.
pub(crate) fn report_lost_hold(context: &Context, queue: &str, job: i64, result: &RunResult) {
    let RunResult::Broken(kind, _) = result else { return };
    if [FailureKind::ConnectionLost, FailureKind::LeaseLost].contains(kind) {
        context.report(BackgroundError::HoldLost { queue: queue.to_owned(), job });
    }
}

/// Reports a claim that was taken over before its outcome was recorded.
pub(crate) fn report_taken_over(context: &Context, queue: &str, job: i64) {
    let queue = queue.to_owned();
    context.report(BackgroundError::Settle { queue, job, source: None });
}

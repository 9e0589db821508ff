//! Failures of an attempt, as results of its run.

use sqlx::error::DatabaseError;

use crate::job::job::FailureKind;
use crate::job::job_error::storable_text;
use crate::job::outcome::RunResult;
use crate::job::reason::reason;

/// Returns the result of a run whose transaction is broken. A success was not committed and becomes
/// a failure; another result stays.
pub(crate) fn broken_transaction(result: RunResult) -> RunResult {
    match result {
        kept if kept.keeps_writes() => {
            let message = "the job's transaction was broken inside the handler";
            RunResult::Broken(FailureKind::Commit, message.to_owned())
        }
        other => other,
    }
}

/// Returns the result of a run whose handler has ended the job's transaction. Work that it
/// committed stays, so another attempt would write it again.
pub(crate) fn ended_by_hand() -> RunResult {
    let message = "the handler ended the job's transaction (a COMMIT or ROLLBACK of its own), and what it committed stays: \
                   use savepoints (begin() on job.tx()) for parts of the work, and a connection of its own for what must stay \
                   in any case";
    RunResult::Broken(FailureKind::TransactionEnded, message.to_owned())
}

/// Returns the result of a run whose savepoint could not be left. The savepoint goes with its
/// transaction: 25P01 without another one, 3B001 within.
pub(crate) fn not_left(error: &sqlx::Error, result: RunResult) -> RunResult {
    let code = error.as_database_error().and_then(DatabaseError::code);
    if code.is_some_and(|code| ["25P01", "3B001"].contains(&&*code)) {
        return ended_by_hand();
    }
    broken_transaction(result)
}

/// Returns the failure that an error of the settle means for the attempt.
pub(crate) fn broken(error: &sqlx::Error, committing: bool) -> RunResult {
    let message = storable_text(&reason(error));
    match error {
        sqlx::Error::Database(e) if !is_shutdown(e.code().as_deref()) => {
            let kind = if committing { FailureKind::Commit } else { FailureKind::Error };
            RunResult::Broken(kind, message)
        }
        _ => RunResult::Broken(FailureKind::ConnectionLost, message),
    }
}

/// Returns the failure of a handler that returned `Ok`, and whose savepoint the server did not
/// release.
pub(crate) fn refused_success(error: &sqlx::Error) -> RunResult {
    let code = error.as_database_error().and_then(DatabaseError::code);
    if code.as_deref() != Some("25P02") {
        return broken(error, true);
    }
    // The driver gave the error to the handler, and does not keep it.
    let message = "a statement of the handler failed, and the handler returned Ok: its writes cannot be committed. \
                   Return the error of the statement; or run a statement that may fail in a savepoint (begin() on \
                   job.tx())";
    RunResult::Broken(FailureKind::Commit, message.to_owned())
}

/// Returns whether the server ends the session: 57P01 to 57P05.
fn is_shutdown(code: Option<&str>) -> bool {
    code.is_some_and(|code| code.starts_with("57P"))
}

/// Returns the result of a run that may have panicked, with these words.
pub(crate) fn run_result(result: Result<RunResult, String>) -> RunResult {
    result.unwrap_or_else(|panic| RunResult::Broken(FailureKind::Panic, storable_text(&panic)))
}

/// Notes with a failure that the handler panicked as it was dropped.
pub(crate) fn with_note(result: RunResult, panic: Option<&String>) -> RunResult {
    match (result, panic) {
        (RunResult::Broken(kind, message), Some(panic)) => {
            let message = format!("{message}, and panicked as it was dropped: {panic}");
            RunResult::Broken(kind, storable_text(&message))
        }
        (result, _) => result,
    }
}

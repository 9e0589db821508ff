//! The reason that an error of the database gives, in one line.

use std::error::Error as StdError;
use std::fmt::{self, Write as _};

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// The advice if a session does not have the prepared statements that the driver expects there.
const POOLED: &str = " (is there a transaction pooler in between? Then make the call in a transaction, through a client with \
                      named_statements(false); or let the pooler keep track of prepared statements, as PgBouncer does from \
                      1.21 on with max_prepared_statements)";

/// How many sources of an error are read: an error may be its own source.
pub(crate) const CHAIN_LIMIT: usize = 20;
/// Bounds the bytes that an error may write of itself.
const TEXT_LIMIT: usize = 64 << 10;

/// Returns the reason of an error: the server's words with the SQLSTATE, or the driver's words.
///
/// The driver adds "at line N" to the server's words. The line is one of the server's own source,
/// and would be looked for in the application's SQL.
pub(crate) fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => database_reason(&**error),
        sqlx::Error::PoolTimedOut => String::from(
            "the pool gave no connection in time: the server gives none, or all are in use (raise its max_connections)",
        ),
        error => error.to_string(),
    }
}

/// Returns the server's words with the SQLSTATE.
pub(crate) fn database_reason(error: &dyn DatabaseError) -> String {
    let mut reason = error.message().to_owned();
    let Some(code) = error.code() else { return reason };
    // Writing to a string cannot fail.
    let _ = write!(reason, " (SQLSTATE {code})");
    let unprepared = match &*code {
        // No such statement, or one of that name already, or one with other arguments.
        "26000" | "42P05" => true,
        "08P01" => error.message().contains("prepared statement"),
        _ => false,
    };
    if unprepared {
        reason.push_str(POOLED);
    }
    reason
}

/// Returns what became of a call to the database: whether it got there, the reason, and what helps.
pub(crate) fn failed_call(call: &str, error: &sqlx::Error) -> String {
    let reason = reason(error);
    match error {
        sqlx::Error::Database(database) => {
            let advice = database.code().as_deref().and_then(advice).unwrap_or_default();
            format!("the database refused the {call}: {reason}{advice}")
        }
        sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::Configuration(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::WorkerCrashed => format!("the {call} did not reach the database: {reason}"),
        sqlx::Error::Io(_) => {
            format!("the {call} did not reach the database, or its answer was lost: {reason}")
        }
        _ => format!("the {call} failed: {reason}"),
    }
}

/// Returns what helps against an SQLSTATE.
fn advice(code: &str) -> Option<&'static str> {
    match code {
        // No such schema, table, function or column.
        "3F000" | "42P01" | "42883" | "42703" => {
            Some("; are seriatim's tables there? Call migrate() on this database first")
        }
        "42501" => Some("; docs/roles.sql has the rights of each role"),
        "25P02" => Some("; an earlier statement of the transaction failed: roll it back"),
        "25006" => Some("; the server is a standby, or the transaction is read-only"),
        _ => None,
    }
}

/// Returns the words of any error, with [`reason`] in place of what the driver says of a database
/// error in its chain.
pub(crate) fn words_of(error: &(dyn StdError + 'static)) -> String {
    let mut words = bounded_text(error);
    for error in causes(error) {
        let database = match error.downcast_ref() {
            Some(sqlx::Error::Database(database)) => Some(&**database),
            _ => error.downcast_ref::<PgDatabaseError>().map(|error| error as &dyn DatabaseError),
        };
        if let Some(database) = database {
            // An error around it may repeat its words.
            words = words.replace(&database.to_string(), &database_reason(database));
            break;
        }
    }
    words
}

/// Returns an error and its sources, up to [`CHAIN_LIMIT`] of them.
pub(crate) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source()).take(CHAIN_LIMIT + 1)
}

/// Returns the words of an error. A `Display` that never stops writing is cut.
fn bounded_text(error: &(dyn StdError + 'static)) -> String {
    let mut text = Bounded(String::new());
    // An error of the writer is the cut; another one leaves what was written.
    let _ = write!(text, "{error}");
    text.0
}

/// Takes text up to [`TEXT_LIMIT`], and refuses more.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = TEXT_LIMIT.saturating_sub(self.0.len());
        let fits = text.floor_char_boundary(room.min(text.len()));
        self.0.push_str(&text[..fits]);
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Returns the source of an error; `None` also if the source only repeats its words.
pub(crate) fn source_of<'a>(
    error: &'a (dyn StdError + 'static),
) -> Option<&'a (dyn StdError + 'static)> {
    let repeats = matches!(error.downcast_ref(), Some(sqlx::Error::Database(_)));
    error.source().filter(|_| !repeats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_did_not_arrive_is_said_not_to_have_arrived() {
        let arrived = |error| !failed_call("request", &error).contains("did not reach");
        assert!(!arrived(sqlx::Error::PoolTimedOut));
        assert!(!arrived(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()));
        assert!(arrived(sqlx::Error::RowNotFound));
    }
}

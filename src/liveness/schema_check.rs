//! Checks whether this program fits the schema, at the start and at intervals. No job is claimed
//! while it does not.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::{BackgroundError, MigrateError};
use crate::liveness::context::Context;
use crate::store::{LATEST, SchemaState, WorkConnection};

/// Bounds one check.
const LIMIT: Duration = Duration::from_secs(5);
/// Time between two checks while the schema fits: a newer program may migrate it at any time.
const INTERVAL: Duration = Duration::from_mins(1);
/// Time between two checks while it does not fit, or that is not known.
const RETRY: Duration = Duration::from_secs(1);

/// The consequences of a check.
struct Verdict {
    /// Whether the gate is open; `None`: as before.
    open: Option<bool>,
    /// The error to report, once while it stays the same.
    error: Option<BackgroundError>,
    next: Duration,
}

/// Checks until `stop`, opens and closes the gate, and reports errors.
pub(crate) async fn run(context: &Context, stop: &CancellationToken) {
    let mut reported = String::new();
    let mut newer = None;
    let mut fits = true;
    loop {
        let state = tokio::select! {
            () = stop.cancelled() => return,
            state = timeout(LIMIT, read_state(context)) => state,
        };
        let state = match state {
            Ok(state) => state,
            Err(_) => Err(database(context, sqlx::Error::PoolTimedOut)),
        };
        if let Ok(SchemaState::NewerCompatible(found)) = state
            && newer.replace(found) != Some(found)
        {
            let schema = context.store.names().schema();
            tracing::info!(
                "schema {schema:?} is at version {found}; this program has version {LATEST}, and can run on it"
            );
        }
        let verdict = decide(context, state);
        let words = verdict.error.as_ref().map(ToString::to_string).unwrap_or_default();
        if let Some(error) = verdict.error.filter(|_| words != reported) {
            context.report(error);
        }
        reported = words;
        // If the server cannot be reached, the gate stays as it is: other parts report that.
        fits = verdict.open.unwrap_or(fits);
        context.schema.open.send_replace(fits);
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(verdict.next) => {}
        }
    }
}

/// Reads how the schema stands to this program.
pub(crate) async fn read_state(context: &Context) -> Result<SchemaState, MigrateError> {
    let conn = context.side.acquire().await;
    let mut conn = WorkConnection::from(conn.map_err(|source| database(context, source))?);
    let state = context.store.schema_state(&mut conn, context.shard).await;
    if !matches!(state, Err(MigrateError::Database { .. })) {
        conn.done();
    }
    state
}

fn decide(context: &Context, state: Result<SchemaState, MigrateError>) -> Verdict {
    let fits = Verdict { open: Some(true), error: None, next: INTERVAL };
    match state {
        Ok(SchemaState::Equal | SchemaState::NewerCompatible(_)) => fits,
        // The claims report that, each for its queue.
        Ok(SchemaState::Missing) => Verdict { next: RETRY, ..fits },
        Ok(SchemaState::Older(found)) => {
            let schema = context.store.names().schema().to_owned();
            let error = BackgroundError::OldSchema { schema, found, needed: LATEST };
            Verdict { open: Some(false), error: Some(error), next: RETRY }
        }
        // A role of the application may do everything but read the versions.
        Err(MigrateError::Database { source, .. }) if is_denied(&source) => {
            tracing::debug!("could not read the version of the schema: {source}");
            fits
        }
        Err(MigrateError::Database { source, .. }) => {
            tracing::debug!("could not read the version of the schema: {source}");
            Verdict { open: None, error: None, next: RETRY }
        }
        Err(error) => Verdict {
            open: Some(false),
            error: Some(BackgroundError::UnusableSchema(error)),
            next: RETRY,
        },
    }
}

fn database(context: &Context, source: sqlx::Error) -> MigrateError {
    MigrateError::Database { schema: context.store.names().schema().to_owned(), step: None, source }
}

/// Returns whether the error is 42501, insufficient privilege.
pub(crate) fn is_denied(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.as_deref() == Some("42501")
}

//! Whether this program fits the schema: asked at the start, and now and then. No job is claimed
//! while it does not.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::{BackgroundError, MigrateError};
use crate::liveness::context::Context;
use crate::store::{LATEST, SchemaState, WorkConnection};

/// How long one question may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two questions while the schema fits: a newer program may migrate it at any time.
const INTERVAL: Duration = Duration::from_mins(1);
/// Between two questions while it does not, or is not known to.
const AGAIN: Duration = Duration::from_secs(1);

/// What an answer means.
struct Answer {
    /// None: nothing new is known.
    open: Option<bool>,
    /// What to say, once while it stays so.
    error: Option<BackgroundError>,
    next: Duration,
}

/// Asks until `stop`, opens and closes the gate, and reports what is wrong.
pub(crate) async fn run(context: &Context, stop: &CancellationToken) {
    let mut said = String::new();
    let mut newer = None;
    let mut fits = true;
    loop {
        let state = tokio::select! {
            () = stop.cancelled() => return,
            state = timeout(LIMIT, ask(context)) => state,
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
        let answer = judge(context, state);
        let words = answer.error.as_ref().map(chain).unwrap_or_default();
        if let Some(error) = answer.error.filter(|_| words != said) {
            context.report(&error);
        }
        said = words;
        // Those who need a server that cannot be reached report that: they are not kept waiting
        // here.
        fits = answer.open.unwrap_or(fits);
        context.schema.open.send_replace(fits);
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(answer.next) => {}
        }
    }
}

async fn ask(context: &Context) -> Result<SchemaState, MigrateError> {
    let conn = context.side.acquire().await;
    let mut conn = WorkConnection::from(conn.map_err(|source| database(context, source))?);
    let state = context.store.schema_state(&mut conn).await;
    if !matches!(state, Err(MigrateError::Database { .. })) {
        conn.done();
    }
    state
}

fn judge(context: &Context, state: Result<SchemaState, MigrateError>) -> Answer {
    let fits = Answer { open: Some(true), error: None, next: INTERVAL };
    match state {
        Ok(SchemaState::Equal | SchemaState::NewerCompatible(_)) => fits,
        // The claims say so, each for its queue.
        Ok(SchemaState::Missing) => Answer { next: AGAIN, ..fits },
        Ok(SchemaState::Older(found)) => {
            let schema = context.store.names().schema().to_owned();
            let error = BackgroundError::OldSchema { schema, found, needed: LATEST };
            Answer { open: Some(false), error: Some(error), next: AGAIN }
        }
        // A role of the host's own may not read the versions, and does all the rest.
        Err(MigrateError::Database { source, .. }) if is_denied(&source) => {
            tracing::debug!("could not read the version of the schema: {source}");
            fits
        }
        Err(MigrateError::Database { source, .. }) => {
            tracing::debug!("could not read the version of the schema: {source}");
            Answer { open: None, error: None, next: AGAIN }
        }
        Err(error) => Answer {
            open: Some(false),
            error: Some(BackgroundError::UnusableSchema(error)),
            next: AGAIN,
        },
    }
}

fn database(context: &Context, source: sqlx::Error) -> MigrateError {
    MigrateError::Database { schema: context.store.names().schema().to_owned(), source }
}

fn chain(error: &BackgroundError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// 42501: no right to.
fn is_denied(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.as_deref() == Some("42501")
}

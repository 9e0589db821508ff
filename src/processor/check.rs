//! The checks before a start: the server, a pooler, the schema and its version, the rights.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use crate::error::{MigrateError, StartError};
use crate::job::redact::redact_detail;
use crate::liveness::context::Context;
use crate::liveness::pooler;
use crate::liveness::schema_check::{is_denied, read_state};
use crate::store::{LATEST, SchemaState, ServerFacts, WorkConnection, in_short_tx, is_read_only};

/// Bounds the checks together.
const LIMIT: Duration = Duration::from_secs(15);

/// Checks whether a processor can work, and notes what the checks found: the pooler, and that the
/// schema fits.
pub(crate) async fn check(
    context: &Context,
    sessions_wanted: bool,
) -> Result<ServerFacts, StartError> {
    let checked = timeout(LIMIT, check_all(context, sessions_wanted)).await;
    checked.unwrap_or(Err(StartError::NoAnswer { limit: LIMIT }))
}

async fn check_all(context: &Context, sessions_wanted: bool) -> Result<ServerFacts, StartError> {
    // By itself: a pool waits for its whole acquire_timeout, and then does not say why.
    let alone = PgConnection::connect_with(&context.side.target()).await.map_err(database)?;
    alone.close().await.map_err(database)?;
    // Before the others, as behind a transaction pooler they must not name their statements.
    pooler::check(context, sessions_wanted).await.map_err(|error| match error {
        pooler::CheckError::Statements(error) => StartError::StatementPooler(error),
        pooler::CheckError::Database(error) => database(error),
    })?;
    let schema = || context.store.names().schema().to_owned();
    match read_state(context).await {
        Ok(SchemaState::Equal | SchemaState::NewerCompatible(_)) => {}
        Ok(SchemaState::Missing) => return Err(StartError::NotMigrated { schema: schema() }),
        Ok(SchemaState::Older(found)) => {
            return Err(StartError::OldSchema { schema: schema(), found, needed: LATEST });
        }
        // The rights say more, and a role may do everything but read the versions.
        Err(MigrateError::Database { source, .. }) if is_denied(&source) => {}
        Err(MigrateError::Database { source, .. }) => return Err(database(source)),
        Err(error) => return Err(StartError::UnusableSchema(error)),
    }
    let facts = facts(context).await.map_err(database)?;
    let missing = missing_rights(context).await.map_err(database)?;
    if !missing.is_empty() {
        return Err(StartError::MissingRights { role: facts.role, schema: schema(), missing });
    }
    context.schema.set_open();
    Ok(facts)
}

/// Reads what the server is.
pub(crate) async fn facts(context: &Context) -> Result<ServerFacts, sqlx::Error> {
    let mut conn = WorkConnection::from(context.side.acquire().await?);
    let facts = in_short_tx(&mut conn, async |conn| context.store.server_facts(conn).await);
    let facts = facts.await?;
    conn.done();
    Ok(facts)
}

async fn missing_rights(context: &Context) -> Result<Vec<String>, sqlx::Error> {
    let mut conn = WorkConnection::from(context.side.acquire().await?);
    let missing = in_short_tx(&mut conn, async |conn| context.store.missing_rights(conn).await);
    let missing = missing.await?;
    conn.done();
    Ok(missing)
}

fn database(error: sqlx::Error) -> StartError {
    // A standby refuses the begin of a transaction that may write.
    if is_read_only(&error) {
        return StartError::ReadOnly;
    }
    StartError::Database(redact_detail(error))
}

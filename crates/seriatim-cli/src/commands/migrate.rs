//! `seriatim migrate`: the schema, its tables and functions.

use serde_json::json;
use seriatim::shards::ShardId;

use crate::args::Migrate;
use crate::failure::Failure;
use crate::output::text::program;
use crate::output::{json_line, line};
use crate::session::Session;

/// Brings the schema up to date, says whether it is, or prints the SQL that would do it. A schema
/// of several gets its number.
pub(crate) async fn run(
    session: &Session,
    migrate: &Migrate,
    shard: Option<ShardId>,
) -> Result<(), Failure> {
    let schema = session.client.schema();
    let to_number = to_number(session, shard).await?;
    if migrate.sql {
        let script = session.client.migration_sql(&session.pool).await?;
        line(&script.unwrap_or_else(|| format!("-- schema {schema:?} is up to date")))?;
        return match to_number {
            Some(shard) => line(&format!(
                "-- This script does not set the number of the schema: `{} migrate` without --sql, \
                 by the owner, makes it shard {shard}. It must run before the first job.",
                program()
            )),
            None => Ok(()),
        };
    }
    let is_migrated = session.client.is_migrated(&session.pool).await?;
    let to_do = match to_number {
        None if is_migrated => {
            return told(session, "up_to_date", &format!("schema {schema:?} is up to date"));
        }
        Some(shard) if is_migrated => {
            format!("schema {schema:?} is to be shard {shard}: `{} migrate` sets this", program())
        }
        _ => format!("schema {schema:?} is to be migrated: `{} migrate` does it", program()),
    };
    if migrate.check {
        return Err(Failure::Refused(to_do));
    }
    if session.dry_run {
        return told(session, "to_do", &to_do);
    }
    match shard {
        None => session.client.migrate(&session.pool).await?,
        Some(shard) => session.client.migrate_shard(&session.pool, shard).await?,
    }
    told(session, "migrated", &format!("schema {schema:?} has been brought up to date"))
}

/// Returns the number that the schema is to get. Fails if it has another one.
async fn to_number(session: &Session, shard: Option<ShardId>) -> Result<Option<ShardId>, Failure> {
    let Some(shard) = shard else { return Ok(None) };
    let is_there = session.client.shard(&session.pool).await?.is_some();
    let is_set = is_there && session.client.is_shard(&session.pool, shard).await?;
    Ok((!is_set).then_some(shard))
}

fn told(session: &Session, state: &str, sentence: &str) -> Result<(), Failure> {
    if session.json() {
        return json_line(&json!({
            "action": "migrate", "schema": session.client.schema(), "state": state,
            "dry_run": session.dry_run,
        }));
    }
    line(sentence)
}

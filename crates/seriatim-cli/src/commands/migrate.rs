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
    if migrate.sql {
        let script = session.client.migration_sql(&session.pool).await?;
        return line(&script.unwrap_or_else(|| format!("-- schema {schema:?} is up to date")));
    }
    let is_migrated = session.client.is_migrated(&session.pool).await?;
    let to_do = format!("schema {schema:?} is to be migrated: `{} migrate` does it", program());
    let is_numbered = match shard {
        Some(shard) if is_migrated => session.client.shard(&session.pool).await? == shard,
        _ => true,
    };
    if is_migrated && is_numbered {
        return told(session, "up_to_date", &format!("schema {schema:?} is up to date"));
    }
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

fn told(session: &Session, state: &str, sentence: &str) -> Result<(), Failure> {
    if session.json() {
        return json_line(&json!({
            "action": "migrate", "schema": session.client.schema(), "state": state,
            "dry_run": session.dry_run,
        }));
    }
    line(sentence)
}

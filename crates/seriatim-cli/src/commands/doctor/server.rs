//! Checks of the server's settings.

use sqlx::Row;

use crate::commands::doctor::finding::{Finding, Findings};
use crate::failure::Failure;
use crate::session::Session;

/// The oldest version that the library supports.
const OLDEST: i32 = 140_000;

/// Looks for settings that lose jobs, or end handlers.
pub(super) async fn settings(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("server");
    let mut tx = session.read().await?;
    let statement = "select current_setting('server_version'), \
           current_setting('server_version_num')::int, pg_is_in_recovery(), \
           current_setting('fsync') = 'off', current_setting('full_page_writes') = 'off', \
           current_setting('synchronous_commit') = 'off', current_setting('autovacuum') = 'off', \
           current_setting('track_activities') = 'off'";
    let row = sqlx::query(statement).persistent(false).fetch_one(&mut *tx).await?;
    let version: String = row.try_get(0)?;
    if row.try_get::<i32, _>(1)? < OLDEST {
        findings.problem(
            format!("PostgreSQL {version} is older than the oldest supported version"),
            "upgrade to PostgreSQL 14 or newer",
        );
    }
    if row.try_get(2)? {
        findings.problem(
            "this server is a standby, and refuses every write",
            "name the primary in --database-url",
        );
    }
    let settings = [
        (3, "fsync is off: a crash of the machine loses jobs, or the database", "fsync"),
        (
            4,
            "full_page_writes is off: a crash of the machine may damage tables",
            "full_page_writes",
        ),
    ];
    for (column, sentence, setting) in settings {
        if row.try_get(column)? {
            let mend = format!("alter system set {setting} = on; select pg_reload_conf();");
            findings.note(sentence, Some(mend));
        }
    }
    if row.try_get(5)? {
        findings.note(
            "synchronous_commit is off: an enqueue that was confirmed may be lost in a crash \
             (claims turn it on for themselves)",
            Some(String::from("alter role current_user set synchronous_commit = on;")),
        );
    }
    if row.try_get(6)? {
        findings.problem(
            "autovacuum is off: dead rows make every claim slower",
            "alter system set autovacuum = on; select pg_reload_conf();",
        );
    }
    if row.try_get(7)? {
        findings.note(
            "track_activities is off: explain cannot say what a handler's session does",
            Some(String::from("alter system set track_activities = on; select pg_reload_conf();")),
        );
    }
    Ok(findings.or_fine(&format!("PostgreSQL {version}")))
}

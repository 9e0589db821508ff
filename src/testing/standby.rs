//! A standby of a private server: its primary waits for it, and it takes the primary's place.

use std::io;
use std::time::Instant;

use sqlx::PgConnection;
use tokio::time::sleep;

use super::ServerError;
use super::private::{PATIENCE, POLL};

/// Makes the primary commit nothing without its standby. Returns when that is so.
pub(super) async fn make_needed(mut primary: PgConnection) -> Result<(), ServerError> {
    let failed = || ServerError::database("make the primary wait for its standby");
    for statement in ["alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"]
    {
        sqlx::raw_sql(statement).execute(&mut primary).await.map_err(failed())?;
    }
    let is_needed = "select exists (select from pg_stat_replication where sync_state = 'sync')
        and current_setting('synchronous_standby_names') = '*'";
    let begun = Instant::now();
    while !sqlx::query_scalar(is_needed).fetch_one(&mut primary).await.map_err(failed())? {
        if begun.elapsed() > PATIENCE {
            return Err(late("wait for the standby to follow its primary"));
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Promotes the standby. Returns when it can be written to.
pub(super) async fn promote(mut standby: PgConnection) -> Result<(), ServerError> {
    let action = "promote the standby";
    let promote = sqlx::query_scalar("select pg_promote(wait_seconds => $1)")
        .bind(i32::try_from(PATIENCE.as_secs()).unwrap_or(i32::MAX));
    let promoted = promote.fetch_one(&mut standby).await.map_err(ServerError::database(action))?;
    if promoted { Ok(()) } else { Err(late(action)) }
}

fn late(action: &str) -> ServerError {
    ServerError::io(action)(io::ErrorKind::TimedOut.into())
}

//! `seriatim metrics`: the metrics of the fleet, as Prometheus reads them.

use std::time::Duration;

use crate::failure::Failure;
use crate::output::{json_line, line};
use crate::session::{Session, Source};

/// How old the last count may be. Others may have counted.
const EVERY: Duration = Duration::from_secs(15);

/// Counts the metrics, unless that was done lately or must not be, and prints them.
pub(crate) async fn run(session: &Session, read_only: bool) -> Result<(), Failure> {
    if !read_only && session.source == Source::Primary {
        let mut tx = session.begin().await?;
        match session.client.collect_metrics(&mut *tx, EVERY).await {
            Ok(_) => tx.commit().await?,
            // An observer may not: it reads what others have counted.
            Err(error) if is_denied(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let metrics = session.client.metrics(&mut *session.read().await?).await?;
    if session.json() {
        return json_line(&metrics);
    }
    line(metrics.to_prometheus().trim_end())
}

fn is_denied(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.as_deref() == Some("42501")
}

//! Runs of frozen processes, which no timeout ends.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tokio::time::Instant;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// How long a process must have been silent by this process's clock. A living process is seen every
/// 10 s: one that seems silent as a machine was suspended, or a clock was set, is seen by then.
const NOTED_FOR: Duration = Duration::from_millis(9_900);
/// Bounds the time of one round: each run may wait a second for the end of a session.
const ROUND: Duration = Duration::from_secs(5);

/// The silent processes: when each was last seen, and when this process noted that first.
#[derive(Debug, Default)]
pub(crate) struct Silent(BTreeMap<i64, (DateTime<Utc>, Instant)>);

impl Silent {
    /// Ends the runs of silent processes that are past their timeouts, each in a transaction.
    pub(crate) async fn abort_runs(
        &mut self,
        store: &Store,
        conn: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        let begin = Instant::now();
        let mut silent = Vec::new();
        let look = async |conn: &mut PgConnection| {
            silent = store.silent_processors(conn).await?;
            Ok(())
        };
        as_leader(store, conn, look).await?;
        let noted = |(id, seen_at): (i64, DateTime<Utc>)| {
            let before = self.0.get(&id).filter(|(seen, _)| *seen == seen_at);
            (id, *before.unwrap_or(&(seen_at, begin)))
        };
        self.0 = silent.into_iter().map(noted).collect();
        let noted = self.0.iter().filter(|(_, (_, at))| at.elapsed() >= NOTED_FOR);
        let among: Vec<i64> = noted.map(|(id, _)| *id).collect();
        let mut more = !among.is_empty();
        while more && begin.elapsed() < ROUND {
            more = false;
            let one = async |conn: &mut PgConnection| {
                more = store.abort_silent_run(conn, &among).await?;
                Ok(())
            };
            as_leader(store, conn, one).await?;
        }
        Ok(())
    }
}

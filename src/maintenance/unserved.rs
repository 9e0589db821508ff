//! Says which queues nobody serves: a name that is mistyped somewhere, or a program that does not
//! run.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::Instant;

use crate::error::BackgroundError;
use crate::job::queue_options::QueueOptions;
use crate::store::{Store, in_short_tx};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_mins(1);
/// How long jobs must have been due. Programs that restart together come back within it.
const OVERDUE: Duration = Duration::from_mins(1);

/// The unserved queues that are already reported.
#[derive(Debug, Default)]
pub(crate) struct Unserved {
    last: Option<Instant>,
    said: HashSet<String>,
}

impl Unserved {
    /// Looks once in a while, and reports each queue when it is first seen to be unserved. The
    /// process's own queues count as served: its row may not be there yet.
    pub(crate) async fn look(
        &mut self,
        store: &Store,
        conn: &mut PgConnection,
        own: &[QueueOptions],
        report: impl Fn(BackgroundError),
    ) -> Result<(), sqlx::Error> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now < last + INTERVAL) {
            return Ok(());
        }
        self.last = Some(now);
        let mut found = in_short_tx(conn, async |conn| store.unserved(conn, OVERDUE).await).await?;
        found.retain(|(queue, _)| own.iter().all(|own| own.name != *queue));
        self.said.retain(|said| found.iter().any(|(queue, _)| queue == said));
        for (queue, waited) in found {
            if self.said.insert(queue.clone()) {
                report(BackgroundError::Unserved { queue, waited });
            }
        }
        Ok(())
    }
}

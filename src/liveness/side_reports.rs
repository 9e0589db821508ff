//! The connection for what handlers write beside their transactions: progress, checkpoints and
//! rests; and the jobs whose rows are to be deleted. One connection of the side pool at a time:
//! settles need the others.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::liveness::side_pool::SidePool;
use crate::store::WorkConnection;

/// Bounds the wait for the connection and for the answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The place in the line for the connection, and the jobs that have succeeded.
#[derive(Debug)]
pub(crate) struct SideReports {
    one: Semaphore,
    /// Jobs that have succeeded, and may have a row.
    succeeded: Mutex<Vec<i64>>,
}

impl Default for SideReports {
    fn default() -> Self {
        Self { one: Semaphore::new(1), succeeded: Mutex::default() }
    }
}

impl SideReports {
    /// Does work of a transaction on a side connection, where `origin` leads. After an error the
    /// connection is closed. Safe to drop: the connection is closed then too.
    pub(crate) async fn on_side<T>(
        &self,
        side: &SidePool,
        origin: Option<&Arc<PgConnectOptions>>,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let work = async {
            let permit = self.one.acquire();
            let _permit = permit.await.map_err(|_| sqlx::Error::PoolClosed)?;
            let mut conn = WorkConnection::from(side.acquire_at(origin).await?);
            let done = work(&mut conn).await?;
            conn.done();
            Ok(done)
        };
        let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
        timeout(LIMIT, work).await.unwrap_or_else(late)
    }

    /// Adds a job that has succeeded. Returns whether it is the only one: then the caller takes
    /// care of it, and of those that come meanwhile.
    pub(crate) fn add_succeeded(&self, job: i64) -> bool {
        self.with(|jobs| {
            jobs.push(job);
            jobs.len() == 1
        })
    }

    /// Drops the first `done` jobs, and returns the rest; `None` if there are no more. They stay
    /// until they are done, so that a job that comes meanwhile is not the only one.
    pub(crate) fn next_succeeded(&self, done: usize) -> Option<Vec<i64>> {
        self.with(|jobs| {
            jobs.drain(..done);
            (!jobs.is_empty()).then(|| jobs.clone())
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<i64>) -> T) -> T {
        // Nothing panics under the lock.
        act(&mut self.succeeded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

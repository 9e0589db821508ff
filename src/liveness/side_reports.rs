//! The writes of progress and checkpoints, and the deletes of those of jobs that have succeeded:
//! one connection of the side pool at a time, as settles need the others.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::liveness::context::Context;
use crate::store::{WorkConnection, in_short_tx};

/// Bounds the wait for the connection and for the answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Who has the connection, and what is to be deleted.
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

impl Context {
    /// Does work of a transaction on a side connection, where `origin` leads. After an error the
    /// connection is closed. Safe to drop: the connection is closed then too.
    pub(crate) async fn report_aside<T>(
        &self,
        origin: Option<&Arc<PgConnectOptions>>,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let work = async {
            let permit = self.side_reports.one.acquire();
            let _permit = permit.await.map_err(|_| sqlx::Error::PoolClosed)?;
            let mut conn = WorkConnection::from(self.side.acquire_at(origin).await?);
            let done = work(&mut conn).await?;
            conn.done();
            Ok(done)
        };
        let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
        timeout(LIMIT, work).await.unwrap_or_else(late)
    }

    /// Deletes what a job that has succeeded has left behind, beside everything else: those that
    /// come meanwhile go together. If the process dies before, maintenance deletes it.
    pub(crate) fn forget_progress(self: &Arc<Self>, job: i64) {
        let is_first = self.side_reports.with(|jobs| {
            jobs.push(job);
            jobs.len() == 1
        });
        if !is_first {
            return;
        }
        let context = Arc::clone(self);
        tokio::spawn(async move {
            let mut done = 0;
            while let Some(jobs) = context.side_reports.next(done) {
                done = jobs.len();
                let forget = async |conn: &mut PgConnection| {
                    let forget = async |conn: &mut PgConnection| {
                        context.store.forget_progress(conn, jobs).await
                    };
                    in_short_tx(conn, forget).await
                };
                if let Err(error) = context.report_aside(None, forget).await {
                    tracing::debug!(%error, "progress is left to maintenance");
                }
            }
        });
    }
}

impl SideReports {
    /// Drops the first `done` jobs, and returns the rest. These stay until then: a job that comes
    /// meanwhile is not the first, and so starts no second task.
    fn next(&self, done: usize) -> Option<Vec<i64>> {
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

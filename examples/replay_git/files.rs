//! The table that the replay fills, and the handler that fills it.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
use sqlx::{PgConnection, PgPool};

use crate::Result;
use crate::change::{Change, Entry, RepoPath, shown};

/// No unique key on the path: the queue is to keep one row per path, which is checked at the end.
/// (And a B-tree would refuse the longest paths.)
const TABLES: &str = "
    create table file (path bytea not null, mode text not null, blob text not null);
    create index on file using hash (path);
    create table rerun (job bigint not null, attempt int not null)";

pub(crate) async fn create_tables(pool: &PgPool) -> Result<()> {
    sqlx::raw_sql(TABLES).execute(pool).await?;
    Ok(())
}

/// Applies a change to the table.
pub(crate) struct Apply {
    /// The worker's name, which becomes the job's result.
    pub(crate) worker: String,
    /// Report every job that begins, or the first one only.
    pub(crate) tell_all: bool,
    pub(crate) told: AtomicBool,
}

#[async_trait]
impl JobHandler for Apply {
    type Data = Change;
    type Output = String;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, change: Change) -> Result<String, JobError> {
        self.tell(job);
        let (id, attempt) = (job.id(), job.attempt());
        let tx = job.tx().await?;
        let stored = stored(tx, &change.path).await?;
        if stored != change.old {
            return Err(JobError::fail(format!(
                "out of order: commit {} changes {} from {}, but the table has {}",
                change.commit,
                change.path,
                shown(change.old.as_ref()),
                shown(stored.as_ref()),
            )));
        }
        write(tx, &change).await?;
        if attempt > 1 {
            sqlx::query("insert into rerun values ($1, $2)")
                .bind(id)
                .bind(i64::from(attempt))
                .execute(tx)
                .await?;
        }
        Ok(self.worker.clone())
    }
}

impl Apply {
    /// Reports the begin of a job on the standard output, which the parent reads.
    fn tell(&self, job: &ActiveJob) {
        if self.tell_all || !self.told.swap(true, Ordering::Relaxed) {
            let line = format!("{} {}\n", job.id(), job.attempt());
            let mut stdout = std::io::stdout().lock();
            // If the parent is gone, this process ends in a moment.
            let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
        }
    }
}

async fn stored(tx: &mut PgConnection, path: &RepoPath) -> Result<Option<Entry>, sqlx::Error> {
    let row: Option<(String, String)> =
        sqlx::query_as("select mode, blob from file where path = $1")
            .bind(&path.0)
            .fetch_optional(tx)
            .await?;
    Ok(row.map(|(mode, blob)| Entry { mode, blob }))
}

async fn write(tx: &mut PgConnection, change: &Change) -> Result<(), sqlx::Error> {
    let statement = match (&change.old, &change.new) {
        (None, Some(_)) => "insert into file values ($1, $2, $3)",
        (Some(_), Some(_)) => "update file set mode = $2, blob = $3 where path = $1",
        (_, None) => "delete from file where path = $1",
    };
    let mut query = sqlx::query(statement).bind(&change.path.0);
    if let Some(new) = &change.new {
        query = query.bind(&new.mode).bind(&new.blob);
    }
    query.execute(tx).await.map(drop)
}

/// The number of jobs that took more than one attempt, and the first few of them.
pub(crate) async fn reruns(pool: &PgPool) -> Result<(i64, Vec<i64>)> {
    let count = sqlx::query_scalar("select count(*) from rerun").fetch_one(pool).await?;
    let first =
        sqlx::query_scalar("select job from rerun order by job limit 20").fetch_all(pool).await?;
    Ok((count, first))
}

/// Returns the differences between the table and the tree, in words: empty if they are equal.
pub(crate) async fn differences(
    pool: &PgPool,
    mut tree: HashMap<RepoPath, Entry>,
) -> Result<Vec<String>> {
    let rows: Vec<(Vec<u8>, String, String)> =
        sqlx::query_as("select path, mode, blob from file order by path").fetch_all(pool).await?;
    let mut found = Vec::new();
    for (path, mode, blob) in rows {
        let (path, stored) = (RepoPath(path), Entry { mode, blob });
        // Removed, so that a second row of a path finds nothing.
        let expected = tree.remove(&path);
        if expected.as_ref() != Some(&stored) {
            let expected = shown(expected.as_ref());
            found.push(format!("{path}: the tree has {expected}, the table {stored}"));
        }
    }
    let missing = tree.iter();
    found.extend(
        missing.map(|(path, entry)| format!("{path}: the tree has {entry}, the table no file")),
    );
    Ok(found)
}

//! Explain: why a job or a group is where it is, and which worker and session have it.

use chrono::{DateTime, Utc};
use sqlx::{PgExecutor, PgPool};

use crate::client::client::Client;
use crate::job::explanation::{GroupExplanation, JobExplanation};
use crate::job::facts::Facts;
use crate::store::Subject;

impl Client {
    /// Explains why a job is where it is, and which worker and session have it: one value, which
    /// prints as a few sentences. `None` if there is no such job.
    ///
    /// It locks nothing, waits for nothing, and counts nothing beyond
    /// [`BoundedCount::LIMIT`](crate::explain::BoundedCount::LIMIT). The session that holds a
    /// running job, and its query, are seen if the role may see them (`pg_read_all_stats`, or the
    /// same role).
    pub async fn explain_job(
        &self,
        pool: &PgPool,
        job: i64,
    ) -> Result<Option<JobExplanation>, sqlx::Error> {
        let Some(facts) = self.facts(pool, Subject::Job(job)).await? else { return Ok(None) };
        facts.explain_job().map(Some).ok_or_else(no_answer)
    }

    /// Explains why a group is where it is: what its running or next job does or waits for. A group
    /// without unfinished jobs has [`Reason::Nothing`](crate::explain::Reason::Nothing). Otherwise
    /// as [`explain_job`](Self::explain_job).
    pub async fn explain_group(
        &self,
        pool: &PgPool,
        queue: &str,
        group: &str,
    ) -> Result<GroupExplanation, sqlx::Error> {
        let facts = self.facts(pool, Subject::Group(queue, group)).await?;
        facts.and_then(Facts::explain_group).ok_or_else(no_answer)
    }

    /// Returns the time until which the server has what the primary wrote, if it is a standby; 1970
    /// if it has replayed nothing yet. `None`: it is the primary. Locks nothing.
    pub async fn standby_at(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        self.store.standby_at(executor).await
    }

    async fn facts(
        &self,
        pool: &PgPool,
        subject: Subject<'_>,
    ) -> Result<Option<Facts>, sqlx::Error> {
        // In a transaction, which a transaction pooler gives to one session. Each statement of the
        // function has its own snapshot.
        let mut tx = pool.begin_with("begin isolation level read committed read only").await?;
        let facts = self.store.facts(&mut tx, subject).await?;
        tx.commit().await?;
        Ok(facts)
    }
}

fn no_answer() -> sqlx::Error {
    sqlx::Error::Decode("the function explain gave no answer that this version knows".into())
}

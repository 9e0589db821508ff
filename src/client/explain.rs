//! Explain: why a job or a group is where it is, and which worker and session have it.

use sqlx::{AssertSqlSafe, PgPool};

use crate::client::client::Client;
use crate::job::explanation::{GroupExplanation, JobExplanation, SessionInfo};
use crate::job::facts::Facts;
use crate::store::{PINNED_PLANS, Subject};

impl Client {
    /// Explains why a job is where it is, and which worker and session have it: one value, which
    /// prints as one sentence. `None` if there is no such job.
    ///
    /// It locks nothing, waits for nothing, and counts nothing beyond
    /// [`BoundedCount::LIMIT`](crate::BoundedCount::LIMIT). The session that holds a running job,
    /// and its query, are seen if the role may see them (`pg_read_all_stats`, or the same role).
    pub async fn explain_job(
        &self,
        pool: &PgPool,
        job: i64,
    ) -> Result<Option<JobExplanation>, sqlx::Error> {
        let Some((facts, session)) = self.facts(pool, Subject::Job(job)).await? else {
            return Ok(None);
        };
        Ok(facts.explain_job(session))
    }

    /// Explains why a group is where it is: what its running or next job does or waits for. A group
    /// without unfinished jobs has [`Reason::Nothing`](crate::Reason::Nothing). Otherwise as
    /// [`explain_job`](Self::explain_job).
    pub async fn explain_group(
        &self,
        pool: &PgPool,
        queue: &str,
        group: &str,
    ) -> Result<GroupExplanation, sqlx::Error> {
        match self.facts(pool, Subject::Group(queue, group)).await? {
            Some((facts, session)) => Ok(facts.explain_group(session)),
            None => Err(sqlx::Error::RowNotFound),
        }
    }

    async fn facts(
        &self,
        pool: &PgPool,
        subject: Subject<'_>,
    ) -> Result<Option<(Facts, Option<SessionInfo>)>, sqlx::Error> {
        // In a transaction, which a transaction pooler gives to one session. Each statement has its
        // own snapshot.
        let begin = format!("begin isolation level read committed read only; {PINNED_PLANS}");
        let mut tx = pool.begin_with(AssertSqlSafe(begin)).await?;
        let Some(facts) = self.store.facts(&mut tx, subject).await? else { return Ok(None) };
        // Of a claim, the session that has the hold. Of a job that waits, one that holds it up.
        let of_group = facts.group.is_some();
        let own = facts.head_locked_by.as_deref().filter(|_| of_group && !facts.is_claimed());
        let lockers = [(facts.locked_by.as_deref(), of_group), (own, false)];
        let mut session = None;
        for (xid, of_group) in lockers {
            if let (None, Some(xid)) = (&session, xid.filter(|xid| *xid != "0")) {
                session = self.store.locker(&mut tx, xid, of_group).await?;
            }
        }
        Ok(Some((facts, session)))
    }
}

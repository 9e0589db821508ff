//! The changes that operators made, and the processors.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::explanation::ProcessorInfo;
use crate::job::operation::Operation;

impl Client {
    /// Returns up to `limit` changes that operators made, the last first; before the operation
    /// `before`, for the next page. They were made by an [`Operator`](crate::admin::Operator), or
    /// by a SQL function.
    pub async fn operations(
        &self,
        executor: impl PgExecutor<'_>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Operation>, sqlx::Error> {
        self.store.operations(executor, before, limit.into()).await
    }

    /// Returns what operators did with one job, the first first: of the last 10,000 operations, and
    /// 100 at most. An operation on several jobs at once names none of them.
    pub async fn job_operations(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Vec<Operation>, sqlx::Error> {
        self.store.job_operations(executor, job).await
    }

    /// Returns the processors, those that are gone and own a claim still included: which queues
    /// each serves, and whether it lives. A killed one is gone at once, one whose host vanished
    /// within 15 s. One without a [presence](crate::ProcessorBuilder::presence) counts as living
    /// for 30 s after it was seen.
    pub async fn processors(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Vec<ProcessorInfo>, sqlx::Error> {
        self.store.processors(executor).await
    }
}

//! Inspect: jobs, groups that stand, and counts as the database has them.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::counts::{HaltedGroup, ParkedUnit, PausedGroup, PausedQueue, QueueCounts};
use crate::job::failed_filter::{FailedFilter, FailedJob};
use crate::job::job::{Job, JobStatus};

/// Bounds the finished jobs of a queue that are looked at for those of a group, by state.
const RECENT: i64 = 500;

impl Client {
    /// Returns a job by its id; `None` if there is no such job, or retention has deleted it.
    pub async fn job(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
    ) -> Result<Option<Job>, sqlx::Error> {
        self.store.job(executor, id, self.without_data).await
    }

    /// Returns the first `limit` unfinished jobs of a group, in the order in which they will run.
    pub async fn group_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        limit: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        self.store.group_jobs(executor, queue, group, limit.into(), self.without_data).await
    }

    /// Returns up to `limit` jobs of a group that ended lately, the highest id first. Only the last
    /// 500 jobs of the queue that succeeded, failed and were cancelled are looked at, so a busy
    /// queue hides older ones.
    pub async fn recent_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        limit: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        let bare = self.without_data;
        self.store.recent_jobs(executor, queue, group, RECENT, limit.into(), bare).await
    }

    /// Returns up to `limit` jobs of a queue with the producer's own id
    /// ([`NewJob::reference`](crate::NewJob::reference)), the newest first, finished ones included.
    pub async fn jobs_by_reference(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        reference: &str,
        limit: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        let bare = self.without_data;
        self.store.jobs_by_reference(executor, queue, reference, limit.into(), bare).await
    }

    /// Returns the status of a job; `None` if there is no such job, or retention has deleted it. A
    /// producer's role may ask it (`docs/roles.sql`), unlike [`job`](Self::job).
    pub async fn job_status(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
    ) -> Result<Option<JobStatus>, sqlx::Error> {
        self.store.job_status(executor, id).await
    }

    /// Returns the dead letters that `filter` names, in the order of their ids, without what they
    /// carry. The next page
    /// begins [after](FailedFilter::after) the last of them.
    ///
    /// A filter that few jobs pass may read all dead letters of the queue; name a queue where there
    /// are many.
    pub async fn failed_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        filter: &FailedFilter,
    ) -> Result<Vec<FailedJob>, sqlx::Error> {
        self.store.failed_jobs(executor, filter).await
    }

    /// Returns the halted groups of a queue, the longest halted first.
    pub async fn halted_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<HaltedGroup>, sqlx::Error> {
        self.store.halted_groups(executor, queue).await
    }

    /// Returns the numbers of a queue's jobs by state. A long history does not slow it down: see
    /// [`QueueCounts`].
    pub async fn counts(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<QueueCounts, sqlx::Error> {
        self.store.counts(executor, queue).await
    }

    /// Returns the failed jobs of a queue that others were parked with, by group and then in their
    /// order.
    pub async fn parked_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<ParkedUnit>, sqlx::Error> {
        self.store.parked_units(executor, queue).await
    }

    /// Returns since when and why a queue is paused; `None` if it is not.
    pub async fn paused_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Option<PausedQueue>, sqlx::Error> {
        self.store.paused_queue(executor, queue).await
    }

    /// Returns the paused groups of a queue, the longest paused first.
    pub async fn paused_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<PausedGroup>, sqlx::Error> {
        self.store.paused_groups(executor, queue).await
    }
}

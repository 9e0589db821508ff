//! Overview: the queues, and the groups of a queue, at a glance.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::overview::{GroupFilter, GroupOverview, GroupPage, QueueOverview, TookOver};

impl Client {
    /// Returns the queues that have a job, a group or settings, by name, 1,000 at most: those with
    /// something unfinished or parked before those that have only ended jobs or settings.
    ///
    /// The cost does not grow with the number of jobs: counts stop at
    /// [`BoundedCount::LIMIT`](crate::explain::BoundedCount::LIMIT).
    pub async fn queues(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Vec<QueueOverview>, sqlx::Error> {
        self.store.queues(executor).await
    }

    /// Returns when this server took the place of another one, if it did. `None`: the schema was
    /// always on it, no processor or receiver has come to it yet, or it is a standby. Locks
    /// nothing.
    pub async fn took_over(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Option<TookOver>, sqlx::Error> {
        self.store.took_over(executor).await
    }

    /// Returns groups of a queue that have something unfinished, parked, halted or paused, adopted
    /// by a worker or not.
    ///
    /// The cost does not grow with the number of groups or jobs: see [`GroupFilter`].
    pub async fn groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        filter: &GroupFilter,
    ) -> Result<GroupPage, sqlx::Error> {
        self.store.groups(executor, queue, filter).await
    }

    /// Returns one group as [`Client::groups`] does; `None` if it has nothing unfinished, parked,
    /// halted or paused.
    pub async fn group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<Option<GroupOverview>, sqlx::Error> {
        self.store.group(executor, queue, group).await
    }
}

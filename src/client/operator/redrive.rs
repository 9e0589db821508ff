//! Redrive: failed jobs of a queue, queued again.

use serde::Serialize;
use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;
use crate::store::RedriveReport;

/// The result of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Redriven {
    /// The number of jobs that are queued again.
    pub jobs: u64,
    /// The number of their groups; jobs without one are not counted.
    pub groups: u64,
    /// The number of later jobs of those groups that have already begun. They are counted among the
    /// jobs that retention still keeps: the 200,000 behind the first redriven job.
    pub overtaken: u64,
    /// The number of jobs that waited in a dead-letter queue, and were moved back.
    pub moved_back: u64,
}

impl From<RedriveReport> for Redriven {
    fn from(report: RedriveReport) -> Self {
        let RedriveReport { jobs, groups, overtaken, moved_back, busy: _ } = report;
        Self { jobs, groups, overtaken, moved_back }
    }
}

impl Operator {
    /// Queues dead letters of a queue again, the oldest first and at most `limit`: the jobs that
    /// failed in it for good. Dead letters of one group run in their original order, before all
    /// other jobs of the group. Their attempts begin anew, an expiry is cleared, and halts by them
    /// end. For one job there is [`retry`](Self::retry).
    ///
    /// Dead letters that wait in its dead-letter queue are moved back. For many of them a move task
    /// is better ([`start_move_task`](Self::start_move_task)): it can be slowed down and cancelled.
    ///
    /// Call it again for more than `limit`. [`Redriven::jobs`] is 0 once none is left. Beside
    /// workers whose jobs fail again, that may be never.
    ///
    /// Left out are jobs that others were parked with ([`redrive_parked`](Self::redrive_parked)),
    /// and those that another transaction is changing; in a dead-letter queue also those of a group
    /// that another transaction holds, and those in flight.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn redrive(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        limit: u32,
    ) -> Result<Redriven, ControlError> {
        name::check_queue(queue)?;
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let report = self.store().redrive(executor, queue, None, limit, self.acting()).await?;
        Ok(Redriven::from(report))
    }

    /// As [`redrive`](Self::redrive), of one group.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn redrive_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        limit: u32,
    ) -> Result<Redriven, ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        Ok(self.store().redrive(executor, queue, Some(group), limit, self.acting()).await?.into())
    }

    /// Queues those of the jobs that are dead letters again, as [`redrive`](Self::redrive) does:
    /// whatever their order in `jobs`, those of one group run in their original order. Others are
    /// left alone. [`Client::failed_jobs`](crate::Client::failed_jobs) lists dead letters.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn redrive_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
    ) -> Result<Redriven, ControlError> {
        Ok(self.store().redrive_jobs(executor, jobs, self.acting()).await?.into())
    }

    /// Gives those of the jobs that are dead letters up, also in a dead-letter queue: they end as
    /// cancelled, and halts by them end. Returns how many. [`retry`](Self::retry) brings one back.
    ///
    /// Left out are jobs that others were parked with ([`discard_parked`](Self::discard_parked)),
    /// and those that another transaction is changing.
    ///
    /// # Errors
    /// [`ControlError::Database`].
    pub async fn discard_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
    ) -> Result<u64, ControlError> {
        Ok(self.store().discard_jobs(executor, jobs, self.acting()).await?)
    }
}

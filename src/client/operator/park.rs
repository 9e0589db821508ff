//! Parking by hand, and what becomes of parked jobs.

use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::client::operator::redrive::Redriven;
use crate::error::ControlError;
use crate::job::name;
use crate::store::ParkReport;

impl Operator {
    /// Parks a group by hand: its next job ends as failed, and the jobs that wait behind it step
    /// aside with it. In a halted group, the jobs behind the one that halted it step aside. Jobs
    /// that are enqueued from then on run. Returns the failed job.
    ///
    /// A processor with maintenance carries it out, within a second or two. Until then the group
    /// stands still.
    ///
    /// # Errors
    /// [`ControlError::GroupRuns`] while a job of it runs; [`ControlError::NothingWaits`];
    /// [`ControlError::GroupBusy`] if another transaction has its rows for a moment, or no worker
    /// has seen it yet; [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn park_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<i64, ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        let of = || (queue.to_owned(), group.to_owned());
        match self.store().park_group(executor, queue, group, self.acting()?).await? {
            ParkReport { job: Some(job), .. } => Ok(job),
            ParkReport { running: Some(job), .. } => {
                let (queue, group) = of();
                Err(ControlError::GroupRuns { queue, group, job })
            }
            ParkReport { busy: true, .. } => Err(group_busy(queue, group)),
            ParkReport { .. } => {
                let (queue, group) = of();
                Err(ControlError::NothingWaits { queue, group })
            }
        }
    }

    /// Queues a failed job and those that are parked with it again, all at once, in their original
    /// order: the failed one goes first, with all its attempts. Without `job`, everything that is
    /// parked in the group.
    ///
    /// [`Redriven::overtaken`] is the number of later jobs of the group that have begun meanwhile.
    /// An expiry is cleared. Jobs that wait in the group run behind them. If the first one fails
    /// for good again, it parks again, with those and with all jobs behind them.
    ///
    /// # Errors
    /// [`ControlError::NotParked`]; [`ControlError::GroupBusy`] if another transaction is changing
    /// some of them, or they are still being parked; [`ControlError::Name`];
    /// [`ControlError::Database`].
    pub async fn redrive_parked(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        job: Option<i64>,
    ) -> Result<Redriven, ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        let report =
            self.store().redrive_parked(executor, queue, group, job, self.acting()?).await?;
        match report.jobs {
            _ if report.busy => Err(group_busy(queue, group)),
            0 => Err(not_parked(queue, group, job)),
            _ => Ok(Redriven::from(report)),
        }
    }

    /// Gives up the jobs that are parked with a failed job (without `job`: all that are parked in
    /// the group): they end as cancelled. The failed job stays a dead letter. Returns the number of
    /// cancelled jobs.
    ///
    /// # Errors
    /// As [`redrive_parked`](Self::redrive_parked).
    pub async fn discard_parked(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        job: Option<i64>,
    ) -> Result<u64, ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        match self.store().discard_parked(executor, queue, group, job, self.acting()?).await? {
            None => Err(group_busy(queue, group)),
            Some(0) => Err(not_parked(queue, group, job)),
            Some(jobs) => Ok(jobs),
        }
    }
}

fn group_busy(queue: &str, group: &str) -> ControlError {
    ControlError::GroupBusy { queue: queue.to_owned(), group: group.to_owned() }
}

fn not_parked(queue: &str, group: &str, job: Option<i64>) -> ControlError {
    ControlError::NotParked { queue: queue.to_owned(), group: group.to_owned(), job }
}

//! Redrive: failed jobs of a queue, queued again.

use std::fmt;

use serde::Serialize;
use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;
use crate::job::words::{counted, counted_are, overtaken};
use crate::store::RedriveReport;

/// The result of a redrive; prints as one sentence.
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

impl fmt::Display for Redriven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BACK: &str = "from a dead-letter queue back to the queue in which";
        if self.jobs == 0 {
            return f.write_str("no job is queued again");
        }
        f.write_str(&counted(self.jobs, "job"))?;
        if self.groups > 0 {
            write!(f, " of {}", counted(self.groups, "group"))?;
        }
        f.write_str(match self.jobs {
            1 => " is queued again in its old place",
            _ => " are queued again, in their original order",
        })?;
        write!(f, "; {}", overtaken(self.overtaken))?;
        match (self.jobs, self.moved_back) {
            (_, 0) => Ok(()),
            (1, _) => write!(f, "; it goes {BACK} it failed"),
            (_, 1) => write!(f, "; 1 of them goes {BACK} it failed"),
            (_, moved) => write!(f, "; {moved} of them go {BACK} they failed"),
        }
    }
}

/// The result of [`Operator::discard_jobs`]; prints as one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Discarded {
    /// The number of dead letters that were given up.
    pub jobs: u64,
}

impl Discarded {
    /// Returns the result of several calls, which gave so many dead letters up.
    pub fn of(jobs: u64) -> Self {
        Self { jobs }
    }
}

impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = match self.jobs {
            1 => "it ends as cancelled, and a halt by it ends",
            _ => "they end as cancelled, and halts by them end",
        };
        write!(f, "{} given up: {ends}", counted_are(self.jobs, "dead letter"))
    }
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
        let report = self.store().redrive(executor, queue, None, limit, self.acting()?).await?;
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
        Ok(self.store().redrive(executor, queue, Some(group), limit, self.acting()?).await?.into())
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
        Ok(self.store().redrive_jobs(executor, jobs, self.acting()?).await?.into())
    }

    /// Gives those of the jobs that are dead letters up, also in a dead-letter queue: they end as
    /// cancelled, and halts by them end. [`retry`](Self::retry) brings one back.
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
    ) -> Result<Discarded, ControlError> {
        let jobs = self.store().discard_jobs(executor, jobs, self.acting()?).await?;
        Ok(Discarded { jobs })
    }
}

#[cfg(test)]
mod tests {
    use super::Redriven;

    #[test]
    fn a_redrive_prints_what_it_did_and_what_it_could_not_keep() {
        let redriven = |jobs, groups, overtaken, moved_back| {
            Redriven { jobs, groups, overtaken, moved_back }.to_string()
        };
        assert_eq!(redriven(0, 0, 0, 0), "no job is queued again");
        assert_eq!(
            redriven(1, 1, 0, 1),
            "1 job of 1 group is queued again in its old place; no later job is known to have \
             begun; it goes from a dead-letter queue back to the queue in which it failed"
        );
        assert_eq!(
            redriven(12, 3, 2, 5),
            "12 jobs of 3 groups are queued again, in their original order; 2 later jobs have \
             already begun; 5 of them go from a dead-letter queue back to the queue in which they \
             failed"
        );
        assert_eq!(
            redriven(2, 0, 1, 1),
            "2 jobs are queued again, in their original order; 1 later job has already begun; 1 of \
             them goes from a dead-letter queue back to the queue in which it failed"
        );
    }
}

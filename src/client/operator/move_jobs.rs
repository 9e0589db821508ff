//! Move: queued jobs, to the ends of their groups in another queue.

use std::fmt;

use serde::Serialize;
use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;
use crate::job::words::counted;
use crate::store::MoveReport;

/// The result of a move; prints as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Moved {
    /// The jobs that were moved, in the order of their ids, which is that of the new ids too.
    pub jobs: Vec<MovedJob>,
    /// The number of their groups; jobs without one are not counted.
    pub groups: u64,
    /// The number of jobs that stay, as they would be duplicates in the new queue.
    pub duplicates: u64,
    /// The number of unfinished jobs that come before a moved one of their group, and stay: none of
    /// them goes before it any more. Up to 1,000 of each group are counted.
    pub left_behind: u64,
}

/// A job that was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct MovedJob {
    /// The job that ended as cancelled.
    pub job: i64,
    /// The job in the new queue.
    pub new_job: i64,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.jobs {
            [] => f.write_str("no job is moved"),
            [one] => write!(f, "job {} is moved", one.job),
            several => write!(f, "{} jobs are moved", several.len()),
        }?;
        match self.groups {
            0 => Ok(()),
            1 => f.write_str(", to the end of its group"),
            groups => write!(f, ", to the ends of {groups} groups"),
        }?;
        if self.left_behind > 0 {
            let earlier = counted(self.left_behind, "earlier job");
            let groups = if self.groups == 1 { "its group" } else { "the same groups" };
            let (stay, them) =
                if self.left_behind == 1 { ("stays", "it") } else { ("stay", "them") };
            write!(f, "; {earlier} of {groups} {stay}, and nothing waits for {them}")?;
        }
        match self.duplicates {
            0 => Ok(()),
            1 => f.write_str("; 1 job stays, as a duplicate"),
            jobs => write!(f, "; {jobs} jobs stay, as duplicates"),
        }
    }
}

impl From<MoveReport> for Moved {
    fn from(report: MoveReport) -> Self {
        let MoveReport { jobs, groups, duplicates, left_behind } = report;
        let jobs = jobs.into_iter().map(|(job, new_job)| MovedJob { job, new_job }).collect();
        Self { jobs, groups, duplicates, left_behind }
    }
}

impl Operator {
    /// Moves those of the jobs that are queued to another queue: one that was mistyped, say. Each
    /// gets a new id, and so a place at the end of its group there; whatever their order in `jobs`,
    /// they keep the order of their old ids. The old job ends as cancelled, and its error names the
    /// new one. Both happen in one transaction.
    ///
    /// The new job keeps its group, data, headers, name, reference, priority, times and limits, and
    /// the time of its enqueue. Its attempts begin anew. A deduplication id counts in the new queue
    /// from now on; a job that would be a duplicate there stays where it is.
    ///
    /// Left out are jobs that are not queued (a dead letter can be redriven first), that are in the
    /// new queue already, and that another transaction is changing. It waits as an enqueue does:
    /// for another open transaction with the same deduplication id.
    ///
    /// For all jobs of a queue there is a [move task](Self::start_move_task). Its jobs keep their
    /// ids, and so their places.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn move_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[i64],
        to_queue: &str,
    ) -> Result<Moved, ControlError> {
        name::check_queue(to_queue)?;
        Ok(self.store().move_jobs(executor, jobs, to_queue, self.acting()?).await?.into())
    }
}

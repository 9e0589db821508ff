//! The arguments of `seriatim job`.

use chrono::{DateTime, Utc};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use seriatim::JobStatus;

use crate::args::value::moment;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Job {
    /// Show a job, its attempts, and what operators did with it.
    Show {
        /// The job's id.
        id: i64,
        /// Show the data and the result too.
        #[arg(long)]
        data: bool,
    },
    /// List jobs of a queue, the newest first.
    List(JobList),
    /// Cancel jobs: a queued one at once, a running one as soon as its worker sees it.
    Cancel(Ids),
    /// Queue failed or cancelled jobs again, in their old places.
    Retry(Ids),
    /// Give jobs up, and let their groups go on. They stay dead letters.
    Skip(Ids),
    /// Queue dead letters again. A dead letter in a dead-letter queue is moved back.
    ///
    /// Dead letters of one group run in their original order, before its other jobs. `redrive`
    /// takes all dead letters of a queue.
    Redrive(Ids),
    /// Give dead letters up, also those that wait in a dead-letter queue: they end as cancelled.
    Discard(Ids),
    /// End the runs of jobs: their workers drop the handlers. The attempts count.
    Abort(Ids),
    /// Make delayed jobs, and those that wait for a retry, due now.
    RunNow(Ids),
    /// Move queued jobs to another queue, to the end of their groups there.
    ///
    /// Each gets a new id, in the order of the old ones, and keeps all else; the old job ends as
    /// cancelled. Dead letters can be redriven first. `move-task` moves what waits in a queue.
    #[command(after_help = "Example:
  seriatim job move 17 18 --to orders")]
    Move(MoveJobs),
}

impl Job {
    /// Returns the ids that a change names.
    pub(crate) fn ids(&mut self) -> Option<&mut Vec<i64>> {
        match self {
            Self::Cancel(Ids { ids })
            | Self::Retry(Ids { ids })
            | Self::Skip(Ids { ids })
            | Self::Redrive(Ids { ids })
            | Self::Discard(Ids { ids })
            | Self::Abort(Ids { ids })
            | Self::RunNow(Ids { ids })
            | Self::Move(MoveJobs { ids, .. }) => Some(ids),
            Self::Show { .. } | Self::List(_) => None,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MoveJobs {
    /// The jobs' ids.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<i64>,
    /// The queue to move them to.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) to: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Ids {
    /// The jobs' ids.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<i64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct JobList {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Only jobs in this state: queued, started, parked, succeeded, failed or cancelled.
    #[arg(long, value_name = "STATE", value_parser = job_status)]
    pub(crate) status: Option<JobStatus>,
    /// Only jobs of this name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only jobs with this id of their producer.
    #[arg(long)]
    pub(crate) reference: Option<String>,
    /// Only jobs that were enqueued since: 2026-11-24T03:00:00Z, 2026-11-24 (UTC), or an age as 2h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<DateTime<Utc>>,
    /// Only jobs before this id: the next page.
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<i64>,
    /// The most jobs, up to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
}

fn job_status(text: &str) -> Result<JobStatus, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        String::from("the states are queued, started, parked, succeeded, failed and cancelled")
    })
}

//! The arguments of `seriatim batch`.

use clap::{Args, Subcommand, ValueEnum};
use seriatim::BatchEnd;

use crate::args::stored_job::StoredJob;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Batch {
    /// List the batches that have not ended, the newest first.
    List {
        /// Also those that have ended or were abandoned.
        #[arg(long)]
        all: bool,
        /// The next page: batches before this one.
        #[arg(long, value_name = "BATCH")]
        before: Option<i64>,
    },
    /// Show a batch: why it waits, what to do, and how its jobs have ended.
    Show {
        /// The batch.
        batch: i64,
        /// The next page: jobs behind this one.
        #[arg(long, value_name = "JOB")]
        after: Option<i64>,
    },
    /// Open a batch, and print its id. Jobs join by `enqueue --batch`.
    #[command(after_help = "Example:
  seriatim batch open march --queue totals --group totals --data '\"march\"'")]
    Open(OpenBatch),
    /// Seal a batch: no job joins any more, and it ends when its jobs have.
    Seal {
        /// The batch.
        batch: i64,
    },
    /// Give a batch up: its follow-up is never enqueued. Its jobs stay.
    Abandon {
        /// The batch.
        batch: i64,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OpenBatch {
    /// A name for people.
    pub(crate) name: String,
    /// When its follow-up starts.
    #[arg(long, default_value = "all-succeeded")]
    pub(crate) when: When,
    #[command(flatten)]
    pub(crate) follow_up: StoredJob,
}

/// When a follow-up starts.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum When {
    /// All jobs have succeeded.
    AllSucceeded,
    /// All jobs have ended.
    AllEnded,
}

impl From<When> for BatchEnd {
    fn from(when: When) -> Self {
        match when {
            When::AllSucceeded => Self::AllSucceeded,
            When::AllEnded => Self::AllEnded,
        }
    }
}

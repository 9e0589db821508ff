//! The arguments of `seriatim schedule`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use seriatim::{Missed, Overlap};

use crate::args::stored_job::StoredJob;
use crate::args::value::{duration, time};

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Schedule {
    /// List the schedules, and when each is due next.
    List,
    /// Show when a schedule is due next.
    Next {
        /// The schedule.
        name: String,
        /// How many times.
        #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        n: u16,
    },
    /// Make a schedule, or change the one of this name.
    ///
    /// With another timing it begins from now, and makes up for nothing. A paused schedule stays
    /// paused. A processor that has it in its code sets it back when it starts.
    #[command(after_help = "Examples:
  seriatim schedule set nightly --cron '0 3 * * *' --zone Europe/Berlin --queue reports --dry-run
  seriatim schedule set poll --every 5m --queue imports --group partner-7 --missed skip")]
    Set(SetSchedule),
    /// Pause a schedule: it makes no job until it is resumed.
    Pause {
        /// The schedule.
        name: String,
    },
    /// End the pause of a schedule. It does not make up for the pause.
    Resume {
        /// The schedule.
        name: String,
    },
    /// Make a job of a schedule now, also if it is paused.
    Fire {
        /// The schedule.
        name: String,
    },
    /// Remove a schedule. Its jobs stay.
    Remove {
        /// The schedule.
        name: String,
    },
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("timing").required(true).args(["cron", "every", "at"])))]
pub(crate) struct SetSchedule {
    /// The schedule.
    pub(crate) name: String,
    /// When: minute, hour, day of the month, month and day of the week, as in "0 3 * * *".
    #[arg(long, value_name = "SPEC", requires = "zone")]
    pub(crate) cron: Option<String>,
    /// The time zone of the cron expression, as Europe/Berlin or UTC.
    #[arg(long, requires = "cron")]
    pub(crate) zone: Option<String>,
    /// How often, as 90s, 5m or 2h: at each multiple since 1970 in UTC.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,
    /// Once, at this time, as 2026-11-24T03:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at: Option<DateTime<Utc>>,
    #[command(flatten)]
    pub(crate) job: StoredJob,
    /// Which times make a job when nobody could make it in time: last, skip, or all:N for the last
    /// N.
    #[arg(long, default_value = "last", value_name = "POLICY")]
    pub(crate) missed: Missed,
    /// Whether a time makes a job while the last one waits or runs.
    #[arg(long, default_value = "queue")]
    pub(crate) overlap: OnOverlap,
}

/// Whether a time makes a job while the last one waits or runs.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OnOverlap {
    /// It makes a job all the same.
    Queue,
    /// It makes none.
    Skip,
}

impl From<OnOverlap> for Overlap {
    fn from(overlap: OnOverlap) -> Self {
        match overlap {
            OnOverlap::Queue => Self::Queue,
            OnOverlap::Skip => Self::Skip,
        }
    }
}

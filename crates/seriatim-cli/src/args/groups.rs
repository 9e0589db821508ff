//! The arguments of `seriatim groups` and `lane`, and of commands about one group.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use seriatim::admin::{GroupSort, GroupState};

#[derive(Debug, Clone, Args)]
pub(crate) struct Groups {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// Only groups in this state: ready, running, lapsed, delayed, gated, halted, paused or
    /// parked.
    #[arg(long, value_name = "STATE", value_parser = group_state)]
    pub(crate) state: Option<GroupState>,
    /// The order. By wait and depth the first 1,000 groups are looked at.
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    pub(crate) sort: Sort,
    /// Only groups whose names begin so.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) find: Option<String>,
    /// Only groups behind this one: the next page.
    #[arg(long, value_name = "GROUP")]
    pub(crate) after: Option<String>,
    /// The most groups, up to 500.
    #[arg(long, visible_alias = "top", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Sort {
    /// By name.
    Name,
    /// The longest wait first.
    Wait,
    /// The most jobs first.
    Depth,
}

impl From<Sort> for GroupSort {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Name => Self::Name,
            Sort::Wait => Self::Wait,
            Sort::Depth => Self::Depth,
        }
    }
}

/// How many jobs of a lane are shown at most.
pub(crate) const MOST_JOBS: u32 = 1_000;

#[derive(Debug, Clone, Args)]
pub(crate) struct Lane {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// The group.
    pub(crate) group: String,
    /// The most jobs to show, up to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_JOBS)))]
    pub(crate) jobs: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GroupArgs {
    /// The queue.
    pub(crate) queue: String,
    /// The group.
    pub(crate) group: String,
}

fn group_state(text: &str) -> Result<GroupState, String> {
    GroupState::parse(text).ok_or_else(|| {
        String::from(
            "the states are ready, running, lapsed, delayed, gated, halted, paused, parked and idle",
        )
    })
}

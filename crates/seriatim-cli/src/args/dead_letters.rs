//! The arguments of `seriatim dead-letters`, `redrive` and `discard`.

use chrono::{DateTime, Utc};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::args::value::moment;

#[derive(Debug, Clone, Args)]
pub(crate) struct DeadLetters {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Only jobs of this name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only jobs whose error has this text in it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
    /// Only jobs that failed since: 2026-11-24T03:00:00Z, 2026-11-24 (UTC), or an age as 2h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<DateTime<Utc>>,
    /// The most jobs, the oldest first, up to 10,000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

impl DeadLetters {
    /// Returns whether not every dead letter of the queue is meant.
    pub(crate) fn is_filtered(&self) -> bool {
        let Self { queue: _, group, name, error, since, limit: _ } = self;
        group.is_some() || name.is_some() || error.is_some() || since.is_some()
    }
}

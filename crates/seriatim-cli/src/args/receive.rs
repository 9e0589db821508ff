//! The arguments of `seriatim receive`.

use std::time::Duration;

use clap::Args;

use crate::args::value::duration;

#[derive(Debug, Clone, Args)]
pub(crate) struct Receive {
    /// The queue.
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// The most jobs, up to 1,000; of one group up to 10.
    #[arg(long, value_name = "JOBS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) max: u32,
    /// How long no other gets them, as 90s, 5m or 2h; 12 hours at most.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) visibility: Duration,
    /// Names this call: a repetition within 5 minutes gets the same jobs.
    #[arg(long, value_name = "ID")]
    pub(crate) attempt_id: Option<String>,
}

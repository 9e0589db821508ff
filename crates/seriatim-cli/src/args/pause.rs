//! The arguments of `seriatim pause` and `resume`: a queue, or a group of it.

use std::time::Duration;

use clap::Args;

use crate::args::value::duration;

#[derive(Debug, Args)]
pub(crate) struct Subject {
    /// The queue.
    pub(crate) queue: String,
    /// The group. Without it: the whole queue.
    pub(crate) group: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// The pause ends by itself after this time, such as 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) lasts: Option<Duration>,
}

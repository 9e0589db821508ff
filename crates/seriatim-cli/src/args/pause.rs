//! The arguments of `seriatim pause`.

use std::time::Duration;

use clap::Args;

use crate::args::subject::Subject;
use crate::args::value::duration;

#[derive(Debug, Clone, Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// The pause ends by itself after this time, such as 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) lasts: Option<Duration>,
}

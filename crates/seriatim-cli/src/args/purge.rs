//! The arguments of `seriatim purge`.

use clap::Args;

use crate::args::subject::Subject;

#[derive(Debug, Args)]
pub(crate) struct Purge {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Also what is in flight: jobs of receivers end, processors are asked to cancel theirs. And
    /// deduplication ids are forgotten. Of a whole queue.
    #[arg(long, conflicts_with = "group")]
    pub(crate) everything: bool,
}

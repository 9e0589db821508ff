//! The arguments of `seriatim purge`.

use clap::Args;
use seriatim::admin::Change;

use crate::args::subject::Subject;

#[derive(Debug, Clone, Args)]
pub(crate) struct Purge {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Also cancel jobs in flight and forget deduplication ids, for a whole queue. Jobs of
    /// receivers end; processors are asked to cancel theirs.
    #[arg(long, conflicts_with = "group")]
    pub(crate) everything: bool,
}

impl From<Purge> for Change {
    fn from(purge: Purge) -> Self {
        let Purge { subject: Subject { queue, group }, everything } = purge;
        if everything { Self::PurgeEverything { queue } } else { Self::Purge { queue, group } }
    }
}

//! The arguments of `seriatim tail`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// The queue.
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
}

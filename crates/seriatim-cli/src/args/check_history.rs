//! The arguments of `seriatim check-history`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckHistory {
    /// One JSON event per line; `-` for the standard input.
    pub(crate) file: PathBuf,
    /// Only count, tell no stories.
    #[arg(long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

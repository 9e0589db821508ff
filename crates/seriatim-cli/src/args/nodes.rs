//! The arguments of `seriatim nodes`.

use clap::Subcommand;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Nodes {
    /// List the processors.
    List,
    /// Say that a node is gone: other workers take over what it has claimed.
    Release {
        /// The node's name.
        node: String,
    },
}

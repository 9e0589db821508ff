//! The arguments of `seriatim parked`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Parked {
    /// List the jobs that failed and have others parked with them, oldest first.
    List {
        /// The queue.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        queue: String,
    },
    /// Queue parked jobs again, with the job that failed, in their order.
    Redrive(ParkedUnits),
    /// Give parked jobs up.
    Discard(ParkedUnits),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ParkedUnits {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// The group.
    pub(crate) group: String,
    /// The job that failed. Without it: all of the group.
    pub(crate) job: Option<i64>,
}

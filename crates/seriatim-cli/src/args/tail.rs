//! The arguments of `seriatim tail`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

#[derive(Debug, Clone, Args)]
pub(crate) struct Tail {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
}

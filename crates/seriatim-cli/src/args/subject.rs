//! A queue, or a group of it: what is paused, resumed or purged.

use std::fmt;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

#[derive(Debug, Clone, Args)]
pub(crate) struct Subject {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// The group. Without it: the whole queue.
    pub(crate) group: Option<String>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, group } = self;
        match group {
            Some(group) => write!(f, "group {group:?} of queue {queue:?}"),
            None => write!(f, "queue {queue:?}"),
        }
    }
}

//! The arguments of `seriatim set-key-limit`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use seriatim::admin::Change;

use crate::args::value::OrDefault;

#[derive(Debug, Clone, Args)]
pub(crate) struct SetKeyLimit {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// The limit key.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) key: String,
    /// The most groups with this key that run at once over the whole fleet; 0: none starts. Or
    /// `default`: what `configure --limit-per-key` says.
    #[arg(value_name = "GROUPS")]
    pub(crate) limit: OrDefault<u32>,
}

impl From<SetKeyLimit> for Change {
    fn from(set: SetKeyLimit) -> Self {
        let SetKeyLimit { queue, key, limit } = set;
        Self::SetKeyLimit { queue, key, limit: limit.into_option() }
    }
}

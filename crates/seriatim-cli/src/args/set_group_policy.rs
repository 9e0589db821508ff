//! The arguments of `seriatim set-group-policy`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use seriatim::admin::Change;

use crate::args::value::{OrDefault, Policy};

#[derive(Debug, Clone, Args)]
pub(crate) struct SetGroupPolicy {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// The group.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) group: String,
    /// Its policy for a job that is out of attempts: `continue`, `halt`, `park`, `halt:1h:park` or
    /// `halt:1h:continue`. Or `default`: what its queue says.
    #[arg(value_name = "POLICY")]
    pub(crate) policy: OrDefault<Policy>,
}

impl From<SetGroupPolicy> for Change {
    fn from(set: SetGroupPolicy) -> Self {
        let SetGroupPolicy { queue, group, policy } = set;
        Self::SetGroupPolicy { queue, group, policy: policy.into_option().map(|policy| policy.0) }
    }
}

//! Which finished jobs a queue keeps.

use crate::job::queue_options::{QueueOptions, Retention};

/// How a finished job is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepFinished {
    pub(crate) succeeded: bool,
    pub(crate) failed: bool,
    pub(crate) cancelled: bool,
}

impl From<&QueueOptions> for KeepFinished {
    fn from(options: &QueueOptions) -> Self {
        let keeps = |retention| retention != Retention::Never;
        Self {
            succeeded: keeps(options.keep_succeeded),
            failed: keeps(options.keep_failed),
            cancelled: keeps(options.keep_cancelled),
        }
    }
}

//! The arguments of `seriatim maintain`.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct Maintain {
    /// The schemas, each with all its queues. Default: the schema of `--schema`.
    pub(crate) schemas: Vec<String>,
    /// Run once and end, as for cron.
    #[arg(long)]
    pub(crate) once: bool,
}

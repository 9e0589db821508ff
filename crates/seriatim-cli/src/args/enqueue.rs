//! The arguments of `seriatim enqueue`.

use std::time::Duration;

use clap::Args;

use crate::args::value::duration;

#[derive(Debug, Clone, Args)]
pub(crate) struct Enqueue {
    /// The queue.
    pub(crate) queue: String,
    /// The group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Its limit key: so many groups with one key run at once as the queue's `limit-per-key` says.
    #[arg(long, requires = "group")]
    pub(crate) limit_key: Option<String>,
    /// The data: JSON, `@FILE`, or `-` for standard input.
    #[arg(long, default_value = "null", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub(crate) data: String,
    /// The kind of the job.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The producer's own id of the job.
    #[arg(long)]
    pub(crate) reference: Option<String>,
    /// In what time it is due, as 90s, 5m or 2h. Default: the queue's delay.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// In what time it expires: later it does not begin.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) time_to_live: Option<Duration>,
    /// 0 to 9: a higher one is sooner, between groups. Default: 0.
    #[arg(long)]
    pub(crate) priority: Option<u8>,
    /// The limit of attempts. Default: that of the queue's workers.
    #[arg(long, value_name = "ATTEMPTS")]
    pub(crate) max_attempts: Option<u32>,
    /// Enqueue nothing if a job with this id was enqueued lately.
    #[arg(long, value_name = "ID")]
    pub(crate) dedup_id: Option<String>,
    /// Join a batch that is not sealed.
    #[arg(long)]
    pub(crate) batch: Option<i64>,
}

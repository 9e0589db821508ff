//! The arguments of `seriatim enqueue`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::args::value::duration;

/// The constructors of a unique key.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum UniqueMode {
    /// A job has its key until it starts.
    UntilStart,
    /// A job has its key until it ends.
    UntilEnd,
    /// Until it starts; the next enqueue replaces its data and its options.
    Replace,
    /// As `replace`, and the time at which it is due.
    Debounce,
}

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
    /// Enqueue nothing while another job has this key: until that one starts, or as the mode says.
    #[arg(long, value_name = "KEY", conflicts_with = "dedup_id")]
    pub(crate) unique_key: Option<String>,
    /// How long a job has its key, and whether the next enqueue replaces its data.
    #[arg(long, requires = "unique_key", value_name = "MODE", default_value = "until-start")]
    pub(crate) unique_mode: UniqueMode,
    /// The key is one of the group, not of the queue.
    #[arg(long, requires = "unique_key", requires = "group")]
    pub(crate) unique_in_group: bool,
    /// Join a batch that is not sealed.
    #[arg(long)]
    pub(crate) batch: Option<i64>,
}

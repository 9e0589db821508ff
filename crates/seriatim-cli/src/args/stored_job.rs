//! The arguments of a job that is stored until it is enqueued: that of a schedule, or the
//! follow-up of a batch.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::value::RawValue;
use seriatim::NewJob;

#[derive(Debug, Clone, Args)]
pub(crate) struct StoredJob {
    /// The queue of the job.
    #[arg(long)]
    pub(crate) queue: String,
    /// Its group: jobs of one group never overlap.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) group: Option<String>,
    /// Its data: JSON, `@FILE`, or `-` for standard input.
    #[arg(long, default_value = "null", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub(crate) data: String,
    /// Its kind.
    #[arg(long, value_name = "NAME")]
    pub(crate) job_name: Option<String>,
}

impl StoredJob {
    /// Returns the job, with the data as they were read.
    pub(crate) fn with(&self, data: &RawValue) -> NewJob {
        let job = NewJob::new(&self.queue, data);
        let job = self.group.iter().fold(job, NewJob::group);
        self.job_name.iter().fold(job, NewJob::name)
    }
}

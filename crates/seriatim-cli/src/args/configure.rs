//! The arguments of `seriatim configure`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use seriatim::admin::DedupScope;

use crate::args::value::{OrDefault, Policy, RateOf, Span};

#[derive(Debug, Clone, Args)]
pub(crate) struct Configure {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) queue: String,
    /// The most jobs in flight over the whole fleet, or `default`: no limit.
    #[arg(long, value_name = "JOBS")]
    pub(crate) in_flight_limit: Option<OrDefault<u32>>,
    /// The most groups that run at once for each limit key over the whole fleet, or `default`: no
    /// limit.
    #[arg(long, value_name = "GROUPS")]
    pub(crate) limit_per_key: Option<OrDefault<u32>>,
    /// How many jobs may start in a time over the whole fleet, as 10/s, 600/min, 5/15s or 100/h; or
    /// `default`: any number.
    #[arg(long, value_name = "JOBS/TIME")]
    pub(crate) rate: Option<OrDefault<RateOf>>,
    /// How many of these may start at once. Default: those of a tenth of a second, and at least 1.
    #[arg(long, value_name = "JOBS", requires = "rate")]
    pub(crate) rate_burst: Option<u32>,
    /// The least time from a start of a group's job to the start of its next one, or `default`:
    /// none.
    #[arg(long, value_name = "DURATION")]
    pub(crate) group_spacing: Option<OrDefault<Span>>,
    /// The delay of jobs that name no time, as 90s or 5m, or `default`: none.
    #[arg(long, value_name = "DURATION")]
    pub(crate) delay: Option<OrDefault<Span>>,
    /// How long a deduplication id counts, or `default`: 5 minutes.
    #[arg(long, value_name = "DURATION")]
    pub(crate) dedup_window: Option<OrDefault<Span>>,
    /// Where a deduplication id counts: `queue` or `group`.
    #[arg(long, value_name = "SCOPE", value_parser = dedup_scope)]
    pub(crate) dedup_scope: Option<DedupScope>,
    /// Whether equal data is a duplicate.
    #[arg(long, value_name = "true|false")]
    pub(crate) dedup_by_content: Option<bool>,
    /// The attempts of jobs that name none, before what processors say; or `default`: as each
    /// processor says, and 10 for receivers.
    #[arg(long, value_name = "ATTEMPTS")]
    pub(crate) max_attempts: Option<OrDefault<u32>>,
    /// The policy for a group whose job is out of attempts: `continue`, `halt`, `park`,
    /// `halt:DURATION:park` or `halt:DURATION:continue`. `default`: as each processor says, and
    /// `continue` for receivers.
    #[arg(long, value_name = "POLICY")]
    pub(crate) out_of_attempts: Option<OrDefault<Policy>>,
    /// How long a job waits after its first failure, twice as long each time; or `default`: as each
    /// processor says, and 1 s for receivers.
    #[arg(long, value_name = "DURATION")]
    pub(crate) backoff: Option<OrDefault<Span>>,
    /// Bounds that wait, or `default`: 10 minutes.
    #[arg(long, value_name = "DURATION")]
    pub(crate) backoff_cap: Option<OrDefault<Span>>,
    /// The queue that a job goes to when it is out of attempts, or `default`: it stays as failed.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) dead_letter_queue: Option<OrDefault<String>>,
    /// Whether a received job can be received again exactly when its visibility ends.
    #[arg(long, value_name = "true|false")]
    pub(crate) strict_visibility: Option<bool>,
}

impl Configure {
    pub(crate) fn changes(&self) -> bool {
        let Self {
            queue: _,
            in_flight_limit,
            limit_per_key,
            rate,
            rate_burst: _,
            group_spacing,
            delay,
            dedup_window,
            dedup_scope,
            dedup_by_content,
            max_attempts,
            out_of_attempts,
            backoff,
            backoff_cap,
            dead_letter_queue,
            strict_visibility,
        } = self;
        in_flight_limit.is_some()
            || limit_per_key.is_some()
            || rate.is_some()
            || group_spacing.is_some()
            || delay.is_some()
            || dedup_window.is_some()
            || dedup_scope.is_some()
            || dedup_by_content.is_some()
            || max_attempts.is_some()
            || out_of_attempts.is_some()
            || backoff.is_some()
            || backoff_cap.is_some()
            || dead_letter_queue.is_some()
            || strict_visibility.is_some()
    }
}

fn dedup_scope(text: &str) -> Result<DedupScope, String> {
    [DedupScope::Queue, DedupScope::Group]
        .into_iter()
        .find(|scope| scope.as_str() == text)
        .ok_or_else(|| String::from("the scopes are queue and group"))
}

//! The settings of a queue for the whole fleet: for every producer and every processor.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::error::ConfigureError;
use crate::job::interval::Interval;
use crate::job::json::{optional_seconds, seconds};
use crate::job::name;
use crate::job::policy::StoredOutOfAttempts;
use crate::job::queue_options::OutOfAttempts;
use crate::job::rate::{Rate, StoredRate};
use crate::job::retry::{DEFAULT_CAP, MAX_DELAY};
use crate::job::words::span;

/// Changes to a queue's settings: `QueueSettings::new("postings").delay(Duration::from_secs(5))`.
///
/// A setting that is not named stays as it is; `None` resets it to its default.
/// [`Client::configure_queue`](crate::Client::configure_queue) checks them, and names the one that
/// is wrong.
#[derive(Debug, Clone)]
#[must_use = "settings do nothing until they are given to Client::configure_queue"]
pub struct QueueSettings {
    queue: String,
    delay: Change<Duration>,
    dedup_window: Change<Duration>,
    dedup_scope: Option<DedupScope>,
    dedup_by_content: Option<bool>,
    in_flight_limit: Change<u32>,
    limit_per_key: Change<u32>,
    rate: Change<Rate>,
    group_spacing: Change<Duration>,
    max_attempts: Change<u32>,
    out_of_attempts: Change<OutOfAttempts>,
    backoff: Change<Duration>,
    backoff_cap: Change<Duration>,
    dead_letter_queue: Change<String>,
    strict_visibility: Option<bool>,
}

/// `None`: not named. `Some(None)`: reset to the default.
type Change<T> = Option<Option<T>>;

/// Among which jobs a deduplication id is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DedupScope {
    /// Among the jobs of the queue.
    #[default]
    Queue,
    /// Among the jobs of the same group. Jobs without a group count as one group.
    Group,
}

impl DedupScope {
    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Group => "group",
        }
    }
}

/// The settings of a queue for the whole fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoredQueueSettings {
    /// The delay of jobs that name neither a delay nor a time; `None`: they are due at once. In
    /// JSON: seconds.
    #[serde(serialize_with = "optional_seconds")]
    pub delay: Option<Duration>,
    /// How long a deduplication id is remembered after its first enqueue. In JSON: seconds.
    #[serde(serialize_with = "seconds")]
    pub dedup_window: Duration,
    /// Among which jobs a deduplication id is unique.
    pub dedup_scope: DedupScope,
    /// Whether jobs without a deduplication id are deduplicated by their content.
    pub dedup_by_content: bool,
    /// The limit of jobs in flight over the whole fleet; `None`: no limit.
    pub in_flight_limit: Option<u32>,
    /// How many groups run at once for each limit key, over the whole fleet; `None`: no limit.
    pub limit_per_key: Option<u32>,
    /// How many jobs may start in a time, over the whole fleet; `None`: any number.
    pub rate: Option<Rate>,
    /// The time from a start of a group to its next one; `None`: no time. In JSON: seconds.
    #[serde(serialize_with = "optional_seconds")]
    pub group_spacing: Option<Duration>,
    /// The attempts of jobs that name none; `None`: as each processor says, and 10 for receivers.
    pub max_attempts: Option<u32>,
    /// The policy for a group whose job is out of attempts, unless the group has its own; `None`:
    /// as each processor says, and for receivers the group goes on.
    pub out_of_attempts: Option<OutOfAttempts>,
    /// How long a job that failed once waits; `None`: as each processor says, and 1 s for
    /// receivers. In JSON: seconds.
    #[serde(serialize_with = "optional_seconds")]
    pub backoff: Option<Duration>,
    /// Bounds that wait, which doubles with each attempt. In JSON: seconds.
    #[serde(serialize_with = "seconds")]
    pub backoff_cap: Duration,
    /// The queue that a job goes to when it is out of attempts; `None`: it stays as failed.
    pub dead_letter_queue: Option<String>,
    /// Whether the claims of receivers end exactly with their visibility.
    pub strict_visibility: bool,
}

/// The limit of one limit key of a queue, instead of the queue's
/// [`limit_per_key`](StoredQueueSettings::limit_per_key).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyLimit {
    /// The limit key.
    pub key: String,
    /// How many groups with this key run at once, over the whole fleet; 0: the key is paused.
    pub limit: u32,
}

/// Shown for a setting about failed attempts that the queue does not store.
const UNSET: &str = "as its processors say";

impl StoredQueueSettings {
    /// Returns each setting with its value, for people.
    pub fn in_words(&self) -> [(&'static str, String); 14] {
        fn or<T: ToString>(value: Option<T>, default: &str) -> String {
            value.map_or_else(|| default.to_owned(), |value| value.to_string())
        }
        [
            ("in flight limit", or(self.in_flight_limit, "none")),
            ("limit per key", or(self.limit_per_key, "none")),
            ("rate", or(self.rate, "none")),
            ("group spacing", or(self.group_spacing.map(span), "none")),
            ("delay", or(self.delay.map(span), "none")),
            ("dedup window", span(self.dedup_window)),
            ("dedup scope", self.dedup_scope.as_str().to_owned()),
            ("dedup by content", self.dedup_by_content.to_string()),
            ("max attempts", or(self.max_attempts, UNSET)),
            ("out of attempts", or(self.out_of_attempts, UNSET)),
            ("backoff", or(self.backoff.map(span), UNSET)),
            ("backoff cap", span(self.backoff_cap)),
            ("dead-letter queue", or(self.dead_letter_queue.as_ref(), "none")),
            ("strict visibility", self.strict_visibility.to_string()),
        ]
    }
}

impl QueueSettings {
    /// How long a deduplication id is remembered by default.
    pub const DEDUP_WINDOW: Duration = Duration::from_mins(5);

    /// Bounds the backoff by default.
    pub const BACKOFF_CAP: Duration = DEFAULT_CAP;

    /// Returns settings that change nothing yet.
    pub fn new(queue: impl Into<String>) -> Self {
        Self {
            queue: queue.into(),
            delay: None,
            dedup_window: None,
            dedup_scope: None,
            dedup_by_content: None,
            in_flight_limit: None,
            limit_per_key: None,
            rate: None,
            group_spacing: None,
            max_attempts: None,
            out_of_attempts: None,
            backoff: None,
            backoff_cap: None,
            dead_letter_queue: None,
            strict_visibility: None,
        }
    }

    /// Sets the delay of jobs that name neither a delay nor a time. At most 100 years, in whole
    /// milliseconds; default none. It holds for jobs that are enqueued from now on.
    pub fn delay(mut self, delay: impl Into<Option<Duration>>) -> Self {
        self.delay = Some(delay.into());
        self
    }

    /// Sets how long a deduplication id is remembered after its first enqueue: 1 ms to 100 years,
    /// in whole milliseconds. Default 5 minutes. It holds for ids that are first enqueued from now
    /// on.
    pub fn dedup_window(mut self, window: impl Into<Option<Duration>>) -> Self {
        self.dedup_window = Some(window.into());
        self
    }

    /// Sets among which jobs a deduplication id is unique. Default [`DedupScope::Queue`]. A change
    /// forgets the ids of the old scope.
    pub fn dedup_scope(mut self, scope: DedupScope) -> Self {
        self.dedup_scope = Some(scope);
        self
    }

    /// Sets whether jobs without a deduplication id are deduplicated by their content, as with
    /// [`NewJob::dedup_by_content`](crate::NewJob::dedup_by_content). Default false.
    pub fn dedup_by_content(mut self, by_content: bool) -> Self {
        self.dedup_by_content = Some(by_content);
        self
    }

    /// Limits the jobs in flight over the whole fleet, of processors and receivers. 1 or more;
    /// default no limit.
    ///
    /// A job is in flight from its claim until it is settled, also if its worker has died. A lower
    /// limit stops no running job.
    pub fn in_flight_limit(mut self, limit: impl Into<Option<u32>>) -> Self {
        self.in_flight_limit = Some(limit.into());
        self
    }

    /// Limits the groups that run at once for each limit key ([`NewJob::limit_key`]), over the
    /// whole fleet, of processors and receivers: 4 jobs of each tenant, say, whose accounts are
    /// the groups. 1 or more; default no limit.
    ///
    /// A group whose key has no slot sleeps, and keeps nobody waiting: the end of another one wakes
    /// it, in the order in which they came. It counts from its claim until its turn ends, also if
    /// its worker has died. Jobs that a receiver has of one group count as one. A lower limit stops
    /// no running job. Claims that began without a limit are not counted.
    ///
    /// [`NewJob::limit_key`]: crate::NewJob::limit_key
    pub fn limit_per_key(mut self, limit: impl Into<Option<u32>>) -> Self {
        self.limit_per_key = Some(limit.into());
        self
    }

    /// Sets how many jobs may start in a time, over the whole fleet, of processors and receivers:
    /// [`Rate::per_second`]`(10)`. Default: any number.
    ///
    /// A job that may not start yet is not claimed: it costs no attempt and no slot. Each start
    /// counts, also of a retry. A change holds from the next claim on, and begins anew.
    pub fn rate(mut self, rate: impl Into<Option<Rate>>) -> Self {
        self.rate = Some(rate.into());
        self
    }

    /// Sets the least time from a start of a group's job to the start of its next one: for a
    /// partner that takes so many calls a second for each account. 1 ms to 100 years, in whole
    /// milliseconds; default none. Jobs without a group have none.
    ///
    /// It holds from the next start of each group on. Other groups are not held up.
    pub fn group_spacing(mut self, spacing: impl Into<Option<Duration>>) -> Self {
        self.group_spacing = Some(spacing.into());
        self
    }

    /// Sets the attempts of jobs, unless a job names its own: for receivers, and before the
    /// [`RetryPolicy`](crate::RetryPolicy) of processors. 1 or more. Default: as each processor
    /// says; 10 for receivers.
    pub fn max_attempts(mut self, attempts: impl Into<Option<u32>>) -> Self {
        self.max_attempts = Some(attempts.into());
        self
    }

    /// Sets what a group does with a job that is out of attempts, unless
    /// [`Operator::set_group_policy`](crate::admin::Operator::set_group_policy) says otherwise: for
    /// receivers, and before
    /// [`QueueOptions::out_of_attempts`](crate::QueueOptions::out_of_attempts) of processors.
    /// Default: as each processor says; for receivers it goes on.
    pub fn out_of_attempts(mut self, policy: impl Into<Option<OutOfAttempts>>) -> Self {
        self.out_of_attempts = Some(policy.into());
        self
    }

    /// Sets how long a job waits after its first failure, if neither its handler nor its nack names
    /// a delay. It doubles with each attempt. It goes before the
    /// [`RetryPolicy`](crate::RetryPolicy) of processors, but for their jitter. At most 100 years,
    /// in whole milliseconds. Default: as each processor says; 1 s for receivers.
    pub fn backoff(mut self, base: impl Into<Option<Duration>>) -> Self {
        self.backoff = Some(base.into());
        self
    }

    /// Bounds the [`backoff`](Self::backoff). At most 100 years, in whole milliseconds; default
    /// [`BACKOFF_CAP`](Self::BACKOFF_CAP), 10 min.
    pub fn backoff_cap(mut self, cap: impl Into<Option<Duration>>) -> Self {
        self.backoff_cap = Some(cap.into());
        self
    }

    /// Sets the queue that a job goes to when it is out of attempts, or fails for good: with its
    /// id, data, error and history, queued there, its attempts anew. Processors and receivers do
    /// so; its group goes on. Default: it stays as [`Failed`](crate::JobStatus::Failed).
    ///
    /// It goes before [`QueueOptions::out_of_attempts`](crate::QueueOptions::out_of_attempts) of
    /// processors. Where a group halts or parks by its own policy, the job stays. The database
    /// refuses the queue itself, and this setting beside an
    /// [`out_of_attempts`](Self::out_of_attempts) that halts or parks.
    pub fn dead_letter_queue(mut self, queue: impl Into<Option<String>>) -> Self {
        self.dead_letter_queue = Some(queue.into());
        self
    }

    /// Sets whether a job that was received by hand can be received again exactly when its
    /// visibility ends. From then on its receipt is stale; only the ack of a job without a group
    /// counts until the job is received again. It holds for receives from now on, and not for
    /// processors. Default false: a claim is taken over 1.75 s after its end was noticed, and its
    /// receipt counts until then.
    pub fn strict_visibility(mut self, strict: bool) -> Self {
        self.strict_visibility = Some(strict);
        self
    }

    /// Checks all settings. Returns the queue, and what changes.
    pub(crate) fn check(self) -> Result<(String, SettingsDocument), ConfigureError> {
        let Self {
            queue,
            delay,
            dedup_window,
            dedup_scope,
            dedup_by_content,
            in_flight_limit,
            limit_per_key,
            rate,
            group_spacing,
            max_attempts,
            out_of_attempts,
            backoff,
            backoff_cap,
            dead_letter_queue,
            strict_visibility,
        } = self;
        name::check_queue(&queue)?;
        if let Some(Some(target)) = &dead_letter_queue {
            name::check_queue(target)?;
        }
        let refused = |setting, value, range| ConfigureError::OutOfRange {
            queue: queue.clone(),
            setting,
            value,
            range,
        };
        let time =
            |setting, change: Change<Duration>, least: Duration, range| match change.flatten() {
                Some(time) if !(least..=MAX_DELAY).contains(&time) => {
                    Err(refused(setting, format!("{time:?}"), range))
                }
                _ => Ok(change.map(|time| time.map(Interval))),
            };
        let count = |setting, change: Change<u32>| match change.flatten() {
            Some(n) if n == 0 || i32::try_from(n).is_err() => {
                Err(refused(setting, n.to_string(), "1 to 2147483647"))
            }
            _ => Ok(change),
        };
        if let Some((value, range)) = out_of_attempts.flatten().and_then(OutOfAttempts::mistake) {
            return Err(refused("out_of_attempts", value, range));
        }
        if let Some((setting, value, range)) = rate.flatten().and_then(Rate::mistake) {
            return Err(refused(setting, value, range));
        }
        let (zero, shortest) = (Duration::ZERO, Duration::from_millis(1));
        let document = SettingsDocument {
            delay: time("delay", delay, zero, "at most 100 years")?,
            dedup_window: time("dedup_window", dedup_window, shortest, "1 ms to 100 years")?,
            dedup_scope,
            dedup_by_content,
            in_flight_limit: count("in_flight_limit", in_flight_limit)?,
            limit_per_key: count("limit_per_key", limit_per_key)?,
            rate: rate.map(StoredRate::from),
            group_spacing: time("group_spacing", group_spacing, shortest, "1 ms to 100 years")?,
            max_attempts: count("max_attempts", max_attempts)?,
            backoff: time("backoff", backoff, zero, "at most 100 years")?,
            backoff_cap: time("backoff_cap", backoff_cap, zero, "at most 100 years")?,
            then: out_of_attempts.map(StoredOutOfAttempts::from),
            dead_letter_queue,
            strict_visibility,
        };
        Ok((queue, document))
    }
}

/// Settings as `configure_queue` takes them and `queue_settings` returns them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SettingsDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Change<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_window: Change<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_scope: Option<DedupScope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_by_content: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight_limit: Change<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_per_key: Change<u32>,
    #[serde(flatten)]
    rate: Option<StoredRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_spacing: Change<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Change<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Change<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_cap: Change<Interval>,
    #[serde(flatten)]
    then: Option<StoredOutOfAttempts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_queue: Change<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict_visibility: Option<bool>,
}

impl From<SettingsDocument> for StoredQueueSettings {
    fn from(stored: SettingsDocument) -> Self {
        let SettingsDocument {
            delay,
            dedup_window,
            dedup_scope,
            dedup_by_content,
            in_flight_limit,
            limit_per_key,
            rate,
            group_spacing,
            max_attempts,
            backoff,
            backoff_cap,
            then,
            dead_letter_queue,
            strict_visibility,
        } = stored;
        let time = |time: Change<Interval>| time.flatten().map(|time| time.0);
        Self {
            delay: time(delay),
            dedup_window: time(dedup_window).unwrap_or(QueueSettings::DEDUP_WINDOW),
            dedup_scope: dedup_scope.unwrap_or_default(),
            dedup_by_content: dedup_by_content.unwrap_or_default(),
            in_flight_limit: in_flight_limit.flatten(),
            limit_per_key: limit_per_key.flatten(),
            rate: rate.and_then(StoredRate::rate),
            group_spacing: time(group_spacing),
            max_attempts: max_attempts.flatten(),
            out_of_attempts: then.and_then(StoredOutOfAttempts::policy),
            backoff: time(backoff),
            backoff_cap: time(backoff_cap).unwrap_or(QueueSettings::BACKOFF_CAP),
            dead_letter_queue: dead_letter_queue.flatten(),
            strict_visibility: strict_visibility.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_travel_as_one_document_both_ways() {
        let settings = QueueSettings::new("q").delay(None).backoff(Duration::from_mins(1));
        let (queue, changed) = settings.max_attempts(3).check().unwrap();
        let changed = serde_json::to_value(&changed).unwrap();
        // Settings that are not named are absent, and reset ones are null.
        let expected = serde_json::json!({"delay": null, "max_attempts": 3, "backoff": "60000 ms"});
        assert_eq!((queue.as_str(), &changed), ("q", &expected));
        let stored: SettingsDocument = serde_json::from_value(changed).unwrap();
        let stored = StoredQueueSettings::from(stored);
        assert_eq!((stored.delay, stored.max_attempts), (None, Some(3)));
        assert_eq!(stored.backoff, Some(Duration::from_mins(1)));
        assert_eq!(stored.dedup_window, QueueSettings::DEDUP_WINDOW);

        let reset = QueueSettings::new("q").out_of_attempts(None).check().unwrap().1;
        let nothing =
            serde_json::json!({"out_of_attempts": null, "halt_for": null, "halt_then": null});
        assert_eq!(serde_json::to_value(&reset).unwrap(), nothing);
    }
}

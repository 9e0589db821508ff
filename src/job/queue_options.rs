//! How a processor treats one queue.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::error::BuildMistake;
use crate::job::json::{from_seconds, seconds};
use crate::job::name;
use crate::job::retry::{MAX_DELAY, RetryPolicy};

/// Bounds the slice of a turn: by then others want the slot.
const MAX_TIME_SLICE: Duration = Duration::from_mins(1);
/// Bounds weights: the least that a queue may get beside another one is a slot in a hundred.
const MAX_WEIGHT: u32 = 100;
/// The most that `max_snoozes` may be.
pub(crate) const SNOOZE_LIMIT: u32 = 10_000;

/// The policy for a group when one of its jobs has used up its attempts (or failed for good).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutOfAttempts {
    /// The job ends as `failed` and is kept as a dead letter; the group goes on with the next job.
    /// The default.
    #[default]
    Continue,
    /// The job ends as `failed` and the group stops until [`retry`](crate::admin::Operator::retry),
    /// [`skip`](crate::admin::Operator::skip) or
    /// [`unhalt_group`](crate::admin::Operator::unhalt_group).
    Halt,
    /// As [`Halt`](Self::Halt), but after a deadline the group goes on by itself. 1 ms to 100
    /// years.
    HaltFor {
        /// How long the group stays halted. In JSON: seconds.
        #[serde(serialize_with = "seconds", deserialize_with = "from_seconds")]
        deadline: Duration,
        /// The action at the deadline. Any processor of the schema with maintenance takes it,
        /// within a second or two.
        then: AfterHalt,
    },
    /// The job ends as `failed`, and the jobs that wait behind it in its group step aside with it
    /// ([`JobStatus::Parked`](crate::JobStatus::Parked)), in order. Jobs that are enqueued later
    /// run. [`redrive_parked`](crate::admin::Operator::redrive_parked) queues the parked jobs
    /// again, [`discard_parked`](crate::admin::Operator::discard_parked) gives them up.
    ///
    /// More than 1,000 jobs step aside in batches, and the group stands still until all have. The
    /// batches need a processor with maintenance.
    Park,
}

/// The action on a halted group at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AfterHalt {
    /// As [`OutOfAttempts::Park`]: the failed job and those behind it step aside.
    Park,
    /// As [`OutOfAttempts::Continue`]: the group goes on with its next job.
    Continue,
}

impl AfterHalt {
    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Park => "park",
            Self::Continue => "continue",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Park, Self::Continue].into_iter().find(|then| then.as_str() == word)
    }
}

/// As `seriatim configure` takes it: `continue`, `halt`, `park`, `halt:90s:park`.
impl fmt::Display for OutOfAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continue => f.write_str("continue"),
            Self::Halt => f.write_str("halt"),
            Self::Park => f.write_str("park"),
            Self::HaltFor { deadline, then } if deadline.subsec_nanos() == 0 => {
                write!(f, "halt:{}s:{}", deadline.as_secs(), then.as_str())
            }
            Self::HaltFor { deadline, then } => {
                write!(f, "halt:{}ms:{}", deadline.as_millis(), then.as_str())
            }
        }
    }
}

impl OutOfAttempts {
    /// Returns the value that cannot be used, and what it must be.
    pub(crate) fn mistake(self) -> Option<(String, &'static str)> {
        match self {
            Self::HaltFor { deadline, .. }
                if deadline < Duration::from_millis(1) || deadline > MAX_DELAY =>
            {
                Some((format!("a halt for {deadline:?}"), "a halt for 1 ms to 100 years"))
            }
            _ => None,
        }
    }
}

/// How a job and its group are kept while the handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Hold {
    /// By row locks in a transaction that stays open for the handler's whole run, on a connection
    /// of its own. The default: no other hold notices a dead worker as quickly. For handlers of
    /// seconds or minutes.
    #[default]
    Transaction,
    /// By a lease that is extended in the background, without a transaction or a connection while
    /// the handler runs. For handlers that run long, or are many.
    /// [`ActiveJob::tx`](crate::ActiveJob::tx) opens a transaction at its first call, and from
    /// there on the hold is that transaction. 1 s to 1 day.
    ///
    /// The lease is extended at a third of its time. A worker that dies is noticed by its presence
    /// long before its leases end. Leases count if the presence cannot be seen (behind a
    /// transaction pooler, say), or if the worker is frozen. The
    /// [`timeout`](QueueOptions::timeout), 5 min by default, is another thing: it ends the handler.
    Lease(Duration),
}

impl Hold {
    /// Returns whether a lease keeps the job while its handler runs.
    pub(crate) fn is_leased(self) -> bool {
        match self {
            Self::Transaction => false,
            Self::Lease(_) => true,
        }
    }

    /// Returns the lease of a claim, unless its job has its own.
    pub(crate) fn lease(self) -> Duration {
        match self {
            Self::Transaction => Duration::ZERO,
            Self::Lease(lease) => lease,
        }
    }
}

/// How long a finished job is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// Deleted in the settle itself: the row never exists as finished.
    Never,
    /// Deleted by maintenance this long after its end.
    For(Duration),
    /// Kept until an operator deletes it.
    Forever,
}

/// The settings of one queue in one processor. Every process that works on a queue should use the
/// same ones. A policy for failed jobs may be stored for the whole fleet instead, in the
/// [`QueueSettings`](crate::admin::QueueSettings): it goes before the options, and a start warns of
/// a difference.
///
/// ```
/// # use std::time::Duration;
/// use seriatim::{OutOfAttempts, QueueOptions, Retention, RetryPolicy};
///
/// let options = QueueOptions::new("postings")
///     .concurrency(8)
///     .retry(RetryPolicy::new(5).base(Duration::from_millis(200)))
///     .out_of_attempts(OutOfAttempts::Halt)
///     .timeout(Duration::from_secs(30))
///     .keep_succeeded(Retention::Never);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct QueueOptions {
    pub(crate) name: String,
    pub(crate) concurrency: usize,
    pub(crate) time_slice: Duration,
    pub(crate) weight: u32,
    pub(crate) retry: RetryPolicy,
    pub(crate) out_of_attempts: OutOfAttempts,
    pub(crate) timeout: Option<Duration>,
    pub(crate) hold: Hold,
    pub(crate) keep_succeeded: Retention,
    pub(crate) keep_failed: Retention,
    pub(crate) keep_cancelled: Retention,
    pub(crate) ignore_before: Option<DateTime<Utc>>,
    pub(crate) retry_undecodable: bool,
    pub(crate) max_snoozes: u32,
}

impl QueueOptions {
    /// How often a job may be put off, by default: see [`max_snoozes`](Self::max_snoozes).
    pub const MAX_SNOOZES: u32 = 100;

    /// Returns the settings of the queue `name`, with the defaults that each method states.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            concurrency: 10,
            time_slice: Duration::from_millis(10),
            weight: 1,
            retry: RetryPolicy::default(),
            out_of_attempts: OutOfAttempts::default(),
            timeout: Some(Duration::from_mins(5)),
            hold: Hold::default(),
            keep_succeeded: Retention::For(Duration::from_hours(24)),
            keep_failed: Retention::For(Duration::from_hours(14 * 24)),
            keep_cancelled: Retention::For(Duration::from_hours(24)),
            ignore_before: None,
            retry_undecodable: true,
            max_snoozes: Self::MAX_SNOOZES,
        }
    }

    /// Sets how many jobs of this queue one process runs at once; on several servers
    /// ([`Processor::over`](crate::Processor::over)), on each. Default 10. Under a
    /// [`Hold::Transaction`] each holds a connection of the pool. Under a [`Hold::Lease`] a slot
    /// costs some memory: hundreds of them share claims and commits if handlers are quick, or
    /// mostly wait for something else than this machine.
    ///
    /// While there is more to do, a claim brings more jobs (or [turns](Self::time_slice) of
    /// them) than there are free slots. They are as many as ended in the last 20 ms and took less
    /// than that, 64 at most. These prefetched jobs are `started` (as of the claim) and wait for
    /// the next free slot. If there is none within 0.1 s, they are released as they were. A job
    /// that was begun before, has one attempt or may expire is released at once; then, as in the
    /// beginning, nothing is prefetched until 32 other jobs were claimed. If the process dies while
    /// they wait, that costs them one attempt. Nothing is prefetched with
    /// [`ProcessorBuilder::slots`](crate::ProcessorBuilder::slots), or with a limit of jobs in
    /// flight.
    pub fn concurrency(mut self, slots: usize) -> Self {
        self.concurrency = slots;
        self
    }

    /// Sets how long a group keeps its slot: its jobs run one after the other and in order until
    /// the slice is over, none is left, or the queue or the group is paused. Then the slot goes to
    /// the group served least recently. Default 10 ms, at most 1 min; zero means one job.
    ///
    /// A job that has begun is never cut off, so slow handlers run one by one. More jobs per turn
    /// cost less each, and the other groups wait longer: with `n` groups that are deep and quick,
    /// the last of them begins after about `n` slices, divided by the slots
    /// (`docs/benchmarks/2026-11.md` has figures).
    ///
    /// The slice counts what handlers take. With the commits between them a turn may last four
    /// slices. A server under load takes longer for these, and shorter turns would add to its load.
    ///
    /// A claim takes as many jobs of a group as are likely to end within the slice, by what the
    /// last ones took in this process: at most 100, and 500 for all its groups together. These are
    /// shown as `started`. Followers are next in order, due, and were never begun before. A job
    /// that may expire, or whose attempts are limited to 1, begins a turn of its own. A job that
    /// was retried, and those of a queue with a limit of jobs in flight or with [shared
    /// slots](crate::ProcessorBuilder::slots), have turns of one job. A failure, a shutdown or a
    /// lost claim ends the turn too, and a follower that did not run is as it was before. If the
    /// process dies, it has used an attempt that is not held against it. A job that commits late
    /// with a lower id runs after the turn.
    ///
    /// Under a [`Hold::Transaction`] each job commits before the next one begins. Under a
    /// [`Hold::Lease`] quick successes of a turn are recorded together (at most 100 jobs, and at
    /// most 20 ms after the first of their handlers began), slow ones one by one. If the process
    /// dies before, those jobs run again, in order. A pause is seen at that time, too.
    pub fn time_slice(mut self, slice: Duration) -> Self {
        self.time_slice = slice;
        self
    }

    /// Sets the queue's share of [`ProcessorBuilder::slots`](crate::ProcessorBuilder::slots): while
    /// more queues have work than there are slots, free slots go to the queues in proportion to
    /// their weights. Without shared slots it means nothing. 1 to 100, default 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the attempts and waits of failed jobs, where the queue's settings store none
    /// ([`QueueSettings::max_attempts`](crate::admin::QueueSettings::max_attempts),
    /// [`backoff`](crate::admin::QueueSettings::backoff)). Default [`RetryPolicy::default`].
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets what a job that is out of attempts does to its group, where neither
    /// [`Operator::set_group_policy`](crate::admin::Operator::set_group_policy) nor the queue's
    /// settings say it
    /// ([`QueueSettings::out_of_attempts`](crate::admin::QueueSettings::out_of_attempts),
    /// [`dead_letter_queue`](crate::admin::QueueSettings::dead_letter_queue)). Default
    /// [`OutOfAttempts::Continue`].
    pub fn out_of_attempts(mut self, then: OutOfAttempts) -> Self {
        self.out_of_attempts = then;
        self
    }

    /// Sets how long a handler may run before it is dropped and the attempt fails. A job's own
    /// timeout comes first. Default 5 min.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Lets handlers run without a limit. Under a [`Hold::Transaction`] a transaction stays open
    /// all the while: see `docs/guide/production.md` on vacuum.
    pub fn no_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }

    /// Sets how jobs are held while their handlers run. Default [`Hold::Transaction`].
    pub fn hold(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }

    /// Sets how long succeeded jobs are kept. Default 1 day.
    pub fn keep_succeeded(mut self, retention: Retention) -> Self {
        self.keep_succeeded = retention;
        self
    }

    /// Sets how long failed jobs (dead letters) are kept. Default 14 days.
    pub fn keep_failed(mut self, retention: Retention) -> Self {
        self.keep_failed = retention;
        self
    }

    /// Sets how long cancelled jobs are kept. Default 1 day.
    pub fn keep_cancelled(mut self, retention: Retention) -> Self {
        self.keep_cancelled = retention;
        self
    }

    /// Returns how many connections of the pool the queue's jobs may hold at once.
    pub(crate) fn connections(&self) -> usize {
        match self.hold {
            Hold::Transaction => self.concurrency,
            Hold::Lease(_) => 1,
        }
    }

    /// Ends jobs that were enqueued before `time`, by the database's clock, without a run. When
    /// their turn comes they end as `cancelled`, with
    /// [`FailureKind::Ignored`](crate::FailureKind::Ignored) in their history. Default: all jobs
    /// run.
    pub fn ignore_before(mut self, time: DateTime<Utc>) -> Self {
        self.ignore_before = Some(time);
        self
    }

    /// Sets whether a job whose data does not decode into the handler's type is retried, as after
    /// any failed attempt: in its place, with the backoff and the attempts of the policy. Default
    /// true.
    /// While a deploy replaces processes, an older one may meet newer data: the next attempt may be
    /// that of a newer process, and the jobs behind wait for it. The failure's kind is
    /// [`FailureKind::Data`](crate::FailureKind::Data).
    ///
    /// False: the job fails at once, and the group's policy for dead jobs applies.
    /// [`retry`](crate::admin::Operator::retry) runs it again, once a handler understands it.
    pub fn retry_undecodable(mut self, retry: bool) -> Self {
        self.retry_undecodable = retry;
        self
    }

    /// Sets how often a job may [snooze](crate::JobError::snooze) or run
    /// [again](crate::ActiveJob::again_after), 0 to 10,000. Default
    /// [`MAX_SNOOZES`](Self::MAX_SNOOZES): 100. The next one is a failed
    /// attempt, whose writes are rolled back. An operator's retry counts anew.
    ///
    /// A partner that refuses requests for long uses them up: while the group
    /// [rests](crate::ActiveJob::rest_group), no job of it starts, and none is put off.
    pub fn max_snoozes(mut self, most: u32) -> Self {
        self.max_snoozes = most;
        self
    }

    /// Returns the queue's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how many milliseconds ended jobs stay: the succeeded, the failed and the cancelled
    /// ones. `None`: for ever.
    pub(crate) fn kept_ms(&self) -> [Option<i64>; 3] {
        [self.keep_succeeded, self.keep_failed, self.keep_cancelled].map(|kept| match kept {
            Retention::Forever => None,
            // No settle deletes a job that was cancelled before it was claimed, for example.
            Retention::Never => Some(0),
            Retention::For(time) => Some(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
        })
    }

    pub(crate) fn mistakes(&self, found: &mut Vec<BuildMistake>) {
        // Destructured whole, so that a new setting cannot be forgotten here.
        let Self {
            name,
            concurrency,
            time_slice,
            weight,
            retry,
            out_of_attempts,
            timeout,
            hold,
            keep_succeeded,
            keep_failed,
            keep_cancelled,
            ignore_before: _,
            retry_undecodable: _,
            max_snoozes,
        } = self;
        let mut out_of_range = |setting, value, range| {
            found.push(BuildMistake::OutOfRange { queue: name.clone(), setting, value, range });
        };
        if *concurrency == 0 || *concurrency > 10_000 {
            out_of_range("concurrency", concurrency.to_string(), "1 to 10000");
        }
        if *time_slice > MAX_TIME_SLICE {
            out_of_range("time_slice", format!("{time_slice:?}"), "at most 1 min");
        }
        if *max_snoozes > SNOOZE_LIMIT {
            out_of_range("max_snoozes", max_snoozes.to_string(), "0 to 10000");
        }
        if *weight == 0 || *weight > MAX_WEIGHT {
            out_of_range("weight", weight.to_string(), "1 to 100");
        }
        if let Some((value, range)) = out_of_attempts.mistake() {
            out_of_range("out_of_attempts", value, range);
        }
        for (setting, value, range) in retry.mistakes() {
            out_of_range(setting, value, range);
        }
        if let Some(limit) = timeout
            && (limit.is_zero() || *limit > MAX_DELAY)
        {
            out_of_range("timeout", format!("{limit:?}"), "more than 0 and at most 100 years");
        }
        if let Hold::Lease(lease) = hold
            && (*lease < Duration::from_secs(1) || *lease > Duration::from_hours(24))
        {
            out_of_range("hold", format!("a lease of {lease:?}"), "a lease of 1 s to 1 day");
        }
        for (setting, retention) in [
            ("keep_succeeded", keep_succeeded),
            ("keep_failed", keep_failed),
            ("keep_cancelled", keep_cancelled),
        ] {
            if let Retention::For(time) = retention
                && *time > MAX_DELAY
            {
                out_of_range(setting, format!("{time:?}"), "at most 100 years");
            }
        }
        if let Err(error) = name::check_queue(name) {
            found.push(error.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_reported() {
        let mut found = Vec::new();
        QueueOptions::new("\0")
            .concurrency(0)
            .time_slice(Duration::from_secs(61))
            .weight(0)
            .max_snoozes(10_001)
            .retry(RetryPolicy::new(0))
            .timeout(Duration::ZERO)
            .out_of_attempts(OutOfAttempts::HaltFor {
                deadline: Duration::ZERO,
                then: AfterHalt::Park,
            })
            .keep_failed(Retention::For(Duration::MAX))
            .mistakes(&mut found);
        assert_eq!(found.len(), 9, "{found:?}");
    }
}

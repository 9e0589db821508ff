//! How a processor treats one queue.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::error::BuildMistake;
use crate::job::name;
use crate::job::retry::{MAX_DELAY, RetryPolicy};

/// The least that a queue may get beside another one is a slot in a hundred.
const MAX_WEIGHT: u32 = 100;

/// What happens to a group when one of its jobs has used up its attempts (or failed for good).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutOfAttempts {
    /// The job ends as `failed` and is kept as a dead letter; the group goes on with the next one. The default.
    #[default]
    Continue,
    /// The job ends as `failed` and the group stops until [`retry`](crate::Client::retry),
    /// [`skip`](crate::Client::skip) or [`resume`](crate::Client::unhalt_group).
    Halt,
    /// As [`Halt`](Self::Halt), but when nobody has decided for so long, this is done. 1 ms to 100 years.
    HaltFor {
        /// How long the group waits for a decision.
        deadline: Duration,
        /// What is done then; within a second or two, by any processor of the schema that has maintenance.
        then: AfterHalt,
    },
    /// The job ends as `failed`, and the jobs that wait behind it in its group step aside with it
    /// ([`JobStatus::Parked`](crate::JobStatus::Parked)), in order; jobs that are enqueued later go on. They come back together by
    /// [`redrive_parked`](crate::Client::redrive_parked), or are given up by
    /// [`discard_parked`](crate::Client::discard_parked).
    ///
    /// More than 1,000 jobs step aside in batches, and the group stands still until all have; that needs a processor with
    /// maintenance.
    Park,
}

/// What is done with a group that was halted for long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterHalt {
    /// As [`OutOfAttempts::Park`]: the failed job and those behind it step aside.
    Park,
    /// As [`OutOfAttempts::Continue`]: the group goes on with its next job.
    Continue,
}

impl AfterHalt {
    /// The word that the database uses.
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

impl OutOfAttempts {
    /// The setting that cannot be used: its value, and what it must be.
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
pub enum Hold {
    /// By row locks in a transaction that stays open for the handler's whole run, on a connection of its own. The
    /// default: nothing is as quick to notice that a worker died. For handlers of seconds or minutes.
    #[default]
    Transaction,
    /// By a lease that is extended in the background, without a transaction or a connection while the handler runs. For
    /// handlers that run long, or are many. [`ActiveJob::tx`](crate::ActiveJob::tx) opens a transaction when it is
    /// first called, and from there on it is a transaction hold. 1 s to 1 day.
    ///
    /// It is extended at a third of its time. A worker that dies is noticed by its presence long before its leases end; they
    /// count where that cannot be seen (behind a transaction pooler, say), or where the worker is frozen. The
    /// [`timeout`](QueueOptions::timeout), 5 min by default, is another thing: it ends the handler.
    Lease(Duration),
}

impl Hold {
    /// How long a claim is good for, unless its job says otherwise.
    pub(crate) fn lease(self) -> Duration {
        match self {
            Self::Transaction => Duration::ZERO,
            Self::Lease(lease) => lease,
        }
    }
}

/// How long a finished job is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Deleted in the settle itself: the row never exists as finished.
    Never,
    /// Deleted by maintenance when it has been finished for this long.
    For(Duration),
    /// Kept until somebody deletes it.
    Forever,
}

/// The settings of one queue in one processor. Every process that works on a queue should use the same ones.
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
    pub(crate) jobs_per_turn: Option<usize>,
    pub(crate) weight: u32,
    pub(crate) retry: RetryPolicy,
    pub(crate) out_of_attempts: OutOfAttempts,
    pub(crate) timeout: Option<Duration>,
    pub(crate) hold: Hold,
    pub(crate) keep_succeeded: Retention,
    pub(crate) keep_failed: Retention,
    pub(crate) keep_cancelled: Retention,
    pub(crate) ignore_before: Option<DateTime<Utc>>,
}

impl QueueOptions {
    /// The queue `name` with the defaults that each method states.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            concurrency: 10,
            jobs_per_turn: None,
            weight: 1,
            retry: RetryPolicy::default(),
            out_of_attempts: OutOfAttempts::default(),
            timeout: Some(Duration::from_mins(5)),
            hold: Hold::default(),
            keep_succeeded: Retention::For(Duration::from_hours(24)),
            keep_failed: Retention::For(Duration::from_hours(14 * 24)),
            keep_cancelled: Retention::For(Duration::from_hours(24)),
            ignore_before: None,
        }
    }

    /// How many jobs of this queue one process runs at once; under a [`Hold::Transaction`] each holds a connection of
    /// the pool. Under a [`Hold::Lease`] a slot costs some memory: hundreds of them share claims and commits where handlers
    /// are quick, or mostly wait for something else than this machine. Default 10.
    ///
    /// While there is more to do, more jobs (or [turns](Self::jobs_per_turn) of them) than there are slots are claimed: as many
    /// as have ended in the last 20 ms and took less than that, 64 at most. They are `started` (as of the claim) and wait for the
    /// next slot that comes free. If none does within 0.1 s they go back as they were; those that were begun before, have one
    /// attempt, or may expire do so at once, and then, as in the beginning, none are claimed ahead until 32 have been claimed
    /// that might wait. If the process dies while they wait, that costs them one attempt. Not with
    /// [`ProcessorBuilder::slots`](crate::ProcessorBuilder::slots), or a limit of jobs in flight.
    pub fn concurrency(mut self, slots: usize) -> Self {
        self.concurrency = slots;
        self
    }

    /// How many jobs of a group run in one turn, one after the other and in order, before the slot goes to the group
    /// served least recently. 1 to 1000. By default one, but under a [`Hold::Transaction`] a turn goes on for up to 20 ms, and 50
    /// jobs, while no other group waits: the next job is claimed in the transaction that ends the one before, and nothing else. (Not where
    /// queues share [`slots`](crate::ProcessorBuilder::slots), nor with an in-flight limit, nor behind a job that was tried before. A
    /// pause, a shutdown and the like end such a turn, too.)
    ///
    /// More jobs per turn cost less each, and the other groups wait longer: a group keeps its slot for at most so many
    /// handlers. What is claimed ahead is `started` (as of the claim) and next in order, due, and was never begun before; a job that may
    /// expire, or whose attempts are limited to 1, begins a turn of its own; one that was retried, and those of a queue
    /// with an in-flight limit, have turns of one job. A failure, a pause, a shutdown or a lost claim ends the turn, and
    /// the jobs that did not come to run are as they were before. A job that commits late with a lower id runs after the
    /// turn.
    ///
    /// One claim takes at most 500 jobs ahead for all its groups together, so with many slots, and with turns that
    /// [wait for slots](Self::concurrency), they are shorter.
    ///
    /// Under a [`Hold::Transaction`] each job commits before the next one begins. Under a [`Hold::Lease`] what succeeded
    /// is recorded when 20 ms have passed since the first handler began whose job is not recorded (at most 100 jobs
    /// together): slow handlers are recorded one by one, quick ones together. If the process dies before, those run
    /// again, in order. That is also when a pause is seen.
    pub fn jobs_per_turn(mut self, jobs: usize) -> Self {
        self.jobs_per_turn = Some(jobs);
        self
    }

    /// Its share of [`ProcessorBuilder::slots`](crate::ProcessorBuilder::slots): while more queues have work than there
    /// are slots, those that become free go to the queues in proportion to their weights. Without such a bound it means
    /// nothing. 1 to 100, default 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Attempts and waits of failed jobs. Default [`RetryPolicy::default`].
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// What a job that is out of attempts does to its group. Default [`OutOfAttempts::Continue`].
    pub fn out_of_attempts(mut self, then: OutOfAttempts) -> Self {
        self.out_of_attempts = then;
        self
    }

    /// How long a handler may run before it is dropped and the attempt fails. A job's own timeout comes first.
    /// Default 5 min.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Let handlers run as long as they like. Under a [`Hold::Transaction`] a transaction stays open all the while: see the
    /// README on vacuum.
    pub fn no_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }

    /// How jobs are kept while their handlers run. Default [`Hold::Transaction`].
    pub fn hold(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }

    /// How long succeeded jobs are kept. Default 1 day.
    pub fn keep_succeeded(mut self, retention: Retention) -> Self {
        self.keep_succeeded = retention;
        self
    }

    /// How long failed jobs (dead letters) are kept. Default 14 days.
    pub fn keep_failed(mut self, retention: Retention) -> Self {
        self.keep_failed = retention;
        self
    }

    /// How long cancelled jobs are kept. Default 1 day.
    pub fn keep_cancelled(mut self, retention: Retention) -> Self {
        self.keep_cancelled = retention;
        self
    }

    /// How many connections of the pool its jobs may hold at once.
    pub(crate) fn connections(&self) -> usize {
        match self.hold {
            Hold::Transaction => self.concurrency,
            Hold::Lease(_) => 1,
        }
    }

    /// Jobs that were enqueued before `time` are not run: when their turn comes they end as `cancelled`, with
    /// [`FailureKind::Ignored`](crate::FailureKind::Ignored) in their history. By the database's clock. Default: all
    /// jobs are run.
    pub fn ignore_before(mut self, time: DateTime<Utc>) -> Self {
        self.ignore_before = Some(time);
        self
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn mistakes(&self, found: &mut Vec<BuildMistake>) {
        // Destructured whole, so that a new setting cannot be forgotten here.
        let Self {
            name,
            concurrency,
            jobs_per_turn,
            weight,
            retry,
            out_of_attempts,
            timeout,
            hold,
            keep_succeeded,
            keep_failed,
            keep_cancelled,
            ignore_before: _,
        } = self;
        let mut out_of_range = |setting, value, range| {
            found.push(BuildMistake::OutOfRange { queue: name.clone(), setting, value, range });
        };
        if *concurrency == 0 || *concurrency > 10_000 {
            out_of_range("concurrency", concurrency.to_string(), "1 to 10000");
        }
        if let Some(jobs) = jobs_per_turn.filter(|jobs| !(1..=1000).contains(jobs)) {
            out_of_range("jobs_per_turn", jobs.to_string(), "1 to 1000");
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
            .jobs_per_turn(0)
            .weight(0)
            .retry(RetryPolicy::new(0))
            .timeout(Duration::ZERO)
            .out_of_attempts(OutOfAttempts::HaltFor {
                deadline: Duration::ZERO,
                then: AfterHalt::Park,
            })
            .keep_failed(Retention::For(Duration::MAX))
            .mistakes(&mut found);
        assert_eq!(found.len(), 8, "{found:?}");
    }
}

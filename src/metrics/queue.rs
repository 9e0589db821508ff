//! The metrics of a queue that this process serves.

use std::time::Duration;

use crate::job::job::FailureKind;
use crate::job::outcome::EndedAs;
use crate::job::waits::Waits;
use crate::metrics::facade::{Counter, Histogram, counter, histogram};
use crate::metrics::label::label;
use crate::metrics::names::{
    ATTEMPT_FAILURES, ATTEMPTS_ENDED, ATTEMPTS_STARTED, CLAIM_DURATION, CLAIMED_JOBS, LANE_WAIT,
    PROCESS_DURATION, SETTLE_DURATION, SLOT_WAIT, TAKEOVERS,
};

/// The outcome of an attempt whose hold was lost, and of which nothing was recorded.
const LOST: &str = "lost";
/// The owners whose claims can be taken over.
const OWNERS: [&str; 2] = ["worker", "receiver"];

/// Counts and measures what a queue's worker does. It belongs to the recorder that was installed
/// when it was made.
#[derive(Debug)]
pub(crate) struct QueueMeter {
    queue: String,
    started: Counter,
    lane_wait: Histogram,
    slot_wait: Histogram,
    succeeded: Counter,
    success_duration: Histogram,
    claim_duration: Histogram,
    claimed_jobs: Histogram,
    settle_duration: Histogram,
}

impl QueueMeter {
    pub(crate) fn new(queue: &str) -> Self {
        let queue = label(queue).to_owned();
        let alone: &[_] = &[("queue", &*queue)];
        let ended = |outcome| counter(&ATTEMPTS_ENDED, &[("queue", &queue), ("outcome", outcome)]);
        let succeeded = EndedAs::Succeeded.as_str();
        let meter = Self {
            started: counter(&ATTEMPTS_STARTED, alone),
            lane_wait: histogram(&LANE_WAIT, alone),
            slot_wait: histogram(&SLOT_WAIT, alone),
            succeeded: ended(succeeded),
            success_duration: duration_of(&queue, succeeded),
            claim_duration: histogram(&CLAIM_DURATION, alone),
            claimed_jobs: histogram(&CLAIMED_JOBS, alone),
            settle_duration: histogram(&SETTLE_DURATION, alone),
            queue,
        };
        // A rate misses the first of a count that was not there before.
        for outcome in [EndedAs::Retried.as_str(), EndedAs::Failed.as_str(), LOST] {
            meter.ended(outcome).increment(0);
        }
        for owner in OWNERS {
            meter.taken_over(owner).increment(0);
        }
        meter
    }

    /// Records that an attempt began.
    pub(crate) fn record_start(&self, waits: Waits) {
        self.started.increment(1);
        self.lane_wait.record(waits.lane.as_secs_f64());
        self.slot_wait.record(waits.slot.as_secs_f64());
    }

    /// Records the end of an attempt, or of a job that had none, behind its commit. `ran`: how long
    /// its handler did.
    pub(crate) fn record_end(
        &self,
        outcome: EndedAs,
        ran: Option<Duration>,
        failure: Option<FailureKind>,
    ) {
        if outcome == EndedAs::Succeeded {
            self.succeeded.increment(1);
            if let Some(ran) = ran {
                self.success_duration.record(ran.as_secs_f64());
            }
            return;
        }
        self.record_other_end(outcome.as_str(), ran);
        if let Some(kind) = failure {
            let labels = [("queue", &*self.queue), ("kind", kind.as_str())];
            counter(&ATTEMPT_FAILURES, &labels).increment(1);
        }
    }

    /// Records an attempt whose hold was lost before anything was recorded.
    pub(crate) fn record_lost(&self, ran: Option<Duration>) {
        self.record_other_end(LOST, ran);
    }

    fn record_other_end(&self, outcome: &'static str, ran: Option<Duration>) {
        self.ended(outcome).increment(1);
        if let Some(ran) = ran {
            duration_of(&self.queue, outcome).record(ran.as_secs_f64());
        }
    }

    /// Records a claim that brought so many jobs, some of them by taking over claims of `lost_by`.
    pub(crate) fn record_claim(&self, took: Duration, jobs: usize, lost_by: &[String]) {
        self.claim_duration.record(took.as_secs_f64());
        self.claimed_jobs.record(f64::from(u32::try_from(jobs).unwrap_or(u32::MAX)));
        for owner in lost_by {
            self.taken_over(owner).increment(1);
        }
    }

    /// Records that the end of a turn was recorded.
    pub(crate) fn record_settle(&self, took: Duration) {
        self.settle_duration.record(took.as_secs_f64());
    }

    fn ended(&self, outcome: &str) -> Counter {
        counter(&ATTEMPTS_ENDED, &[("queue", &self.queue), ("outcome", outcome)])
    }

    fn taken_over(&self, owner: &str) -> Counter {
        counter(&TAKEOVERS, &[("queue", &self.queue), ("reason", owner)])
    }
}

fn duration_of(queue: &str, outcome: &str) -> Histogram {
    histogram(&PROCESS_DURATION, &[("queue", queue), ("outcome", outcome)])
}

//! Reports of an ended attempt, after the commit: one line of the log with the same fields for
//! every outcome, its span, and the application's hook. Never the data.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracing::Span;
use tracing::field::{self, Empty};

use crate::attempt::event::{self, Event, EventHook};
use crate::attempt::reports::forget_reports;
use crate::job::disposition::Disposition;
use crate::job::job::Failure;
use crate::job::outcome::{EndedAs, Outcome};
use crate::job::queue_options::OutOfAttempts;
use crate::job::trace_parent::TraceParent;
use crate::job::waits::Waits;
use crate::liveness::context::Context;
use crate::metrics::queue::QueueMeter;
use crate::store::{AttemptNumber, Claim, LoadedJob};

/// The fields of an attempt's event, without its outcome.
pub(crate) struct AttemptFacts {
    queue: Arc<str>,
    group: Option<String>,
    job: i64,
    pub(crate) name: Option<String>,
    reference: Option<String>,
    pub(crate) number: AttemptNumber,
    pub(crate) waits: Waits,
    began: Instant,
    /// How long the handler ran, once it has ended.
    took: OnceLock<Duration>,
    /// The context of the trace that enqueued the job.
    trace: Option<TraceParent>,
    /// The span that the handler ran in. The outcome is noted in it.
    span: OnceLock<Span>,
    on_event: Option<EventHook>,
    meter: Arc<QueueMeter>,
    /// False if no attempt begins: the job ends without its handler.
    runs: bool,
    /// Set if the handler has reported: its success deletes what is left of that.
    reported: OnceLock<Arc<Context>>,
    /// Whether an outcome was told.
    told: AtomicBool,
}

/// The id of a trace, as logs have it.
struct TraceId(u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Logs the event at a level.
macro_rules! ended {
    ($level:expr, $facts:expr, $outcome:expr, $failure:expr, $delay:expr, $($message:tt)+) => {{
        let (facts, failure): (&AttemptFacts, Option<&Failure>) = ($facts, $failure);
        tracing::event!(
            target: "seriatim::job",
            $level,
            queue = &*facts.queue,
            group = facts.group.as_deref(),
            job = facts.job,
            name = facts.name.as_deref(),
            reference = facts.reference.as_deref(),
            attempt = facts.number.of_all,
            outcome = $outcome.as_str(),
            duration_ms = facts.took.get().copied().map(millis),
            slot_wait_ms = millis(facts.waits.slot),
            lane_wait_ms = millis(facts.waits.lane),
            retry_in_ms = $delay,
            trace_id = facts.trace.map(|trace| field::display(TraceId(trace.trace_id()))),
            error.kind = failure.map(|failure| failure.kind.as_str()),
            error.message = failure.map(|failure| &*failure.message),
            $($message)+
        )
    }};
}

impl AttemptFacts {
    /// Returns the facts of an attempt that begins now.
    pub(crate) fn new(
        queue: &Arc<str>,
        claim: &Claim,
        loaded: &LoadedJob,
        (on_event, meter): (Option<EventHook>, Arc<QueueMeter>),
    ) -> Self {
        let began = Instant::now();
        let waits = loaded.waits.map(|(waits, claimed)| waits.at_begin(began - claimed));
        let waits = waits.unwrap_or_default();
        let runs = claim.disposition == Disposition::Run;
        if runs {
            meter.record_start(waits);
        }
        Self {
            queue: Arc::clone(queue),
            group: claim.group.clone(),
            job: claim.job,
            name: loaded.name.clone(),
            reference: loaded.reference.clone(),
            number: loaded.number,
            waits,
            began,
            took: OnceLock::new(),
            trace: TraceParent::of(&loaded.headers),
            span: OnceLock::new(),
            on_event,
            meter,
            runs,
            reported: OnceLock::new(),
            told: AtomicBool::new(false),
        }
    }

    /// Returns the span that the handler runs in: a root, since the job's producer has ended. Its
    /// fields are in each of the handler's own lines, so they are few.
    pub(crate) fn span(&self) -> Span {
        let begin = || {
            tracing::info_span!(
                target: "seriatim::job",
                parent: None,
                "process",
                queue = &*self.queue,
                group = self.group.as_deref(),
                job = self.job,
                name = self.name.as_deref(),
                attempt = i64::from(self.number.of_all),
                otel.name = format_args!("process {}", self.queue),
                otel.kind = "consumer",
                otel.status_code = Empty,
                error.type = Empty,
                messaging.seriatim.outcome = Empty,
            )
        };
        self.span.get_or_init(begin).clone()
    }

    /// Records that the handler has ended.
    pub(crate) fn record_end(&self) {
        // A handler ends once.
        let _ = self.took.set(self.began.elapsed());
    }

    /// Notes that the database may have a progress or a checkpoint of the job.
    pub(crate) fn note_reports(&self, context: &Arc<Context>) {
        // A handler ends once.
        let _ = self.reported.set(Arc::clone(context));
    }

    /// Tells that the job has succeeded.
    pub(crate) fn tell_success(&self) {
        self.log_success();
        self.tell_others(EndedAs::Succeeded, None, None);
    }

    /// Tells an outcome whose commit is known to have succeeded.
    pub(crate) fn tell(&self, outcome: &Outcome) {
        self.log(outcome);
        let (failure, delay) = match outcome {
            Outcome::Retried { failure, delay } => (Some(failure), Some(*delay)),
            Outcome::Snoozed { delay, .. } => (None, Some(*delay)),
            Outcome::Failed { failure, .. } => (Some(failure), None),
            _ => (None, None),
        };
        self.tell_others(outcome.ended_as(), failure, delay);
    }

    /// Counts the outcome, notes it in the span, and calls the hook.
    fn tell_others(&self, outcome: EndedAs, failure: Option<&Failure>, delay: Option<Duration>) {
        self.told.store(true, Ordering::Relaxed);
        if let Some(context) = self.reported.get().filter(|_| outcome == EndedAs::Succeeded) {
            forget_reports(context, self.job);
        }
        let ran = self.took.get().copied();
        self.meter.record_end(outcome, ran, failure.map(|failure| failure.kind));
        if let Some(span) = self.span.get() {
            span.record("messaging.seriatim.outcome", outcome.as_str());
            if let Some(failure) = failure {
                span.record("otel.status_code", "ERROR");
                span.record("error.type", failure.kind.as_str());
            }
        }
        if let Some(hook) = &self.on_event {
            let event = Event {
                queue: self.queue.to_string(),
                group: self.group.clone(),
                job: self.job,
                name: self.name.clone(),
                reference: self.reference.clone(),
                attempt: self.number.of_all,
                outcome,
                failure: failure.cloned(),
                retry_in: delay,
                duration: self.took.get().copied(),
                lane_wait: self.waits.lane,
                slot_wait: self.waits.slot,
            };
            event::call(hook, &event);
        }
    }

    fn log_success(&self) {
        ended!(tracing::Level::DEBUG, self, EndedAs::Succeeded, None, None::<u64>, "job succeeded");
    }

    fn log(&self, outcome: &Outcome) {
        use tracing::Level;
        let (none, no_delay) = (None, None::<u64>);
        let ended = outcome.ended_as();
        match outcome {
            Outcome::Succeeded { .. } => self.log_success(),
            Outcome::Cancelled => {
                ended!(Level::INFO, self, ended, none, no_delay, "job cancelled");
            }
            Outcome::Ignored => {
                ended!(Level::INFO, self, ended, none, no_delay, "job ignored: it is too old");
            }
            Outcome::Released => {
                ended!(Level::INFO, self, ended, none, no_delay, "job released");
            }
            Outcome::Snoozed { delay, .. } => {
                ended!(Level::INFO, self, ended, none, Some(millis(*delay)), "job snoozed");
            }
            Outcome::Retried { failure, delay } => {
                let delay = millis(*delay);
                let message = "attempt failed, will be retried";
                ended!(Level::INFO, self, ended, Some(failure), Some(delay), "{message}");
            }
            Outcome::Failed { failure, then } => {
                let message = self.advice(*then);
                ended!(Level::ERROR, self, ended, Some(failure), no_delay, "job failed{message}");
            }
        }
    }

    /// Returns what a failed job means for its group, and the command that helps.
    fn advice(&self, then: OutOfAttempts) -> String {
        let Some(group) = &self.group else { return String::new() };
        let (queue, group) = (shell_word(&self.queue), shell_word(group));
        match then {
            OutOfAttempts::Continue => String::new(),
            OutOfAttempts::Halt => format!(
                ", and its group is halted until retry, skip or unhalt_group: `seriatim lane {queue} {group}`"
            ),
            OutOfAttempts::HaltFor { deadline, .. } => format!(
                ", and its group is halted for {deadline:?}, or until retry, skip or unhalt_group: `seriatim lane {queue} {group}`"
            ),
            OutOfAttempts::Park => format!(
                ", and the jobs behind it are parked: `seriatim parked redrive {queue} {group}`"
            ),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for AttemptFacts {
    fn drop(&mut self) {
        if self.runs && !*self.told.get_mut() {
            self.meter.record_lost(self.took.get().copied());
        }
    }
}

/// Returns a name as a shell takes it for one word.
fn shell_word(name: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/@%+=,".contains(c);
    if name.chars().all(plain) && !name.starts_with('-') {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("'{}'", name.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_of_a_shell() {
        assert_eq!(shell_word("account-42"), "account-42");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's; rm"), r"'it'\''s; rm'");
        assert_eq!(shell_word("-x"), "'-x'");
    }
}

//! The data of a claimed turn: its jobs, its end, and the part that is still to be recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use crate::attempt::ended::AttemptFacts;
use crate::attempt::event::EventHook;
use crate::attempt::failure::broken;
use crate::attempt::handler::ErasedHandler;
use crate::attempt::layer::Layer;
use crate::attempt::time_slice::TimeSlice;
use crate::error::BackgroundError;
use crate::job::outcome::{Outcome, RunResult};
use crate::job::queue_options::{Hold, QueueOptions};
use crate::job::redact::redact_detail;
use crate::liveness::context::Context;
use crate::liveness::leases::LeaseGuard;
use crate::liveness::sessions::Signals;
use crate::metrics::queue::QueueMeter;
use crate::store::{AttemptNumber, Claim, KeepFinished, LoadedJob, UnrecordedSuccess};

/// A queue as one processor runs it.
pub(crate) struct QueueRuntime {
    pub(crate) name: Arc<str>,
    pub(crate) options: QueueOptions,
    pub(crate) keep: KeepFinished,
    pub(crate) handler: Arc<dyn ErasedHandler>,
    /// Receives finished jobs that are held by a lease.
    pub(crate) settler: mpsc::Sender<Finished>,
    pub(crate) hooks: AttemptHooks,
    pub(crate) meter: Arc<QueueMeter>,
    pub(crate) time_slice: TimeSlice,
    /// One for each handler that may run at once. By transaction more jobs may be held: each of the
    /// others is settled, or is about to begin.
    pub(crate) handlers: Arc<Semaphore>,
    /// True if a claim was left to a take-over: no server recorded its outcome in time. Its worker
    /// then looks for claims that it does not know.
    pub(crate) left_claim: AtomicBool,
}

/// The application's own code around each attempt.
#[derive(Clone, Default)]
pub(crate) struct AttemptHooks {
    /// The outermost is the first.
    pub(crate) layers: Arc<[Box<dyn Layer>]>,
    pub(crate) on_event: Option<EventHook>,
}

impl QueueRuntime {
    pub(crate) fn new(
        options: QueueOptions,
        handler: Arc<dyn ErasedHandler>,
        settler: mpsc::Sender<Finished>,
        hooks: AttemptHooks,
    ) -> Self {
        let (name, keep) = (options.name().into(), (&options).into());
        let meter = Arc::new(QueueMeter::new(options.name()));
        let time_slice = TimeSlice::new(options.time_slice);
        let handlers = Arc::new(Semaphore::new(options.concurrency));
        let left_claim = AtomicBool::new(false);
        Self {
            name,
            options,
            keep,
            handler,
            settler,
            hooks,
            meter,
            time_slice,
            handlers,
            left_claim,
        }
    }

    /// Returns a queue that runs in the caller's task, one job at a time and in its transaction,
    /// whatever its options: no heartbeat extends a lease there.
    pub(crate) fn in_one_task(
        options: QueueOptions,
        handler: Arc<dyn ErasedHandler>,
        hooks: AttemptHooks,
    ) -> Self {
        let (settler, _) = mpsc::channel(1);
        let options = options.hold(Hold::Transaction).time_slice(Duration::ZERO);
        Self::new(options, handler, settler, hooks)
    }
}

/// How an attempt ended for the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// An outcome was recorded.
    Finished,
    /// A success was recorded, and nothing is due because of it: the group has no other job.
    Drained,
    /// An outcome was recorded, and the claim stands for the next job of the turn.
    Stays,
    /// Only the first job of several was recorded: the database refused one of their successes. The
    /// jobs behind the first run again.
    FirstOnly,
    /// A shutdown released the job.
    Released,
    /// Nothing was recorded: the claim was lost.
    Lost,
}

/// A claimed turn: the current job, its followers, and the successes before it.
#[derive(Clone)]
pub(crate) struct ClaimedTurn {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: Arc<QueueRuntime>,
    pub(crate) claim: Claim,
    /// The options that the claim's connection was opened with: the claim is released and settled
    /// where they lead. `None` if they never change.
    pub(crate) origin: Option<Arc<PgConnectOptions>>,
    /// Earlier successes of the turn, recorded together with the current job.
    pub(crate) earlier: Vec<UnrecordedSuccess>,
    /// The lease that the claim is given when the turn goes on; `None` for row locks.
    pub(crate) lease: Option<Duration>,
    /// True if the turn ends with this job.
    pub(crate) last: bool,
    /// When the first job of the turn began.
    pub(crate) began: Option<Instant>,
    /// The time that the handlers of the turn have taken so far.
    pub(crate) handled: Duration,
    /// True while no handler of the turn runs.
    pub(crate) idle: bool,
    /// The turn that the slot runs next; `None` if it has none of its own.
    pub(crate) next: Option<Arc<dyn NextTurn>>,
    /// The facts for the event of the current attempt; `None` before its hold.
    pub(crate) facts: Option<Arc<AttemptFacts>>,
    /// The facts of the earlier successes.
    pub(crate) earlier_facts: Vec<Arc<AttemptFacts>>,
    /// The jobs behind the current one that have begun: a success was refused, and the turn went
    /// back to its first job.
    pub(crate) begun_behind: Vec<i64>,
}

/// The turn that a slot runs after the one that ends.
pub(crate) trait NextTurn: Send + Sync {
    /// Takes it, so that the settle of the one that ends holds it as well. Returns its job and its
    /// token; `None` if none waits, or if the next claim needs the slot's connection, which
    /// `has_claimed` before.
    fn take(&self, has_claimed: bool) -> Option<(i64, Uuid)>;
}

impl ClaimedTurn {
    pub(crate) fn new(context: Arc<Context>, queue: Arc<QueueRuntime>, claim: Claim) -> Self {
        Self {
            context,
            queue,
            claim,
            origin: None,
            earlier: Vec::new(),
            lease: None,
            last: false,
            began: None,
            handled: Duration::ZERO,
            idle: false,
            next: None,
            facts: None,
            earlier_facts: Vec::new(),
            begun_behind: Vec::new(),
        }
    }

    /// Notes what the event of the attempt will say, before its handler runs.
    pub(crate) fn begin_attempt(&mut self, loaded: &LoadedJob) {
        let on_event = self.queue.hooks.on_event.clone();
        let meter = Arc::clone(&self.queue.meter);
        self.began.get_or_insert_with(Instant::now);
        self.claim.began = Some(std::time::Instant::now());
        let facts = AttemptFacts::new(&self.queue.name, &self.claim, loaded, (on_event, meter));
        self.facts = Some(Arc::new(facts));
    }

    /// Returns the number of the current attempt, and the kind of its job.
    pub(crate) fn attempted(&self) -> (AttemptNumber, Option<&str>) {
        let facts = self.facts.as_ref();
        facts.map_or_else(Default::default, |facts| (facts.number, facts.name.as_deref()))
    }

    /// Tells the recorded outcome of the current job. Returns how its turn ended.
    pub(crate) fn tell_end(&self, outcome: &Outcome) -> TurnEnd {
        if let Some(facts) = &self.facts {
            facts.tell(outcome);
        }
        match outcome {
            _ if !self.begun_behind.is_empty() => TurnEnd::FirstOnly,
            Outcome::Released => TurnEnd::Released,
            _ => TurnEnd::Finished,
        }
    }

    /// Leaves the claim to a take-over, and reports why its outcome was not recorded.
    pub(crate) fn leave_claim(&self, error: sqlx::Error) -> TurnEnd {
        self.queue.left_claim.store(true, Ordering::Relaxed);
        let (queue, job) = (self.queue.name.to_string(), self.claim.job);
        let source = Some(redact_detail(error));
        self.context.report(BackgroundError::Settle { queue, job, source });
        TurnEnd::Lost
    }

    /// Returns whether the claim stands for the next job of the turn.
    pub(crate) fn stays(&self, unrecorded: &Unrecorded) -> bool {
        matches!(unrecorded, Unrecorded::Outcome(Outcome::Succeeded { .. }))
            && !self.claim.followers.is_empty()
            && !self.last
            && self
                .began
                .is_none_or(|began| self.queue.time_slice.lasts(self.handled, began.elapsed()))
            && !self.context.stop.is_cancelled()
    }
}

/// The part of a turn that is still to be recorded.
pub(crate) enum Unrecorded {
    /// A result. Its outcome is decided with the record.
    Result(RunResult),
    /// A decided outcome. Each further try records the same outcome.
    Outcome(Outcome),
    /// Only earlier successes of a turn that goes on.
    EarlierOnly,
}

impl From<RunResult> for Unrecorded {
    /// A success has its outcome. Another outcome is decided with the record, which also reads a
    /// request to cancel the job.
    fn from(result: RunResult) -> Self {
        match result {
            RunResult::Succeeded(result) => Self::Outcome(Outcome::Succeeded { result }),
            other => Self::Result(other),
        }
    }
}

impl Unrecorded {
    /// Returns what is left to record if the transaction of the hold did not commit: a result that
    /// stands only with the handler's writes is a failure, another one is recorded as decided.
    pub(crate) fn uncommitted(self, error: &sqlx::Error) -> Self {
        let keeps_writes = match &self {
            Self::Result(result) => result.keeps_writes(),
            Self::Outcome(outcome) => outcome.keeps_writes(),
            Self::EarlierOnly => false,
        };
        if keeps_writes { Self::Result(broken(error, true)) } else { self }
    }
}

/// A job whose handler has ended, or the earlier successes of a turn that goes on.
pub(crate) struct Finished {
    pub(crate) run: ClaimedTurn,
    pub(crate) unrecorded: Unrecorded,
    /// Extends the lease until the outcome is written; `None` if the turn itself still extends it.
    #[allow(dead_code)] // For its drop.
    pub(crate) guard: Option<LeaseGuard>,
    pub(crate) signals: Signals,
    pub(crate) since: Instant,
    /// The error of the last try to record; `None` if a row was locked.
    pub(crate) failed: Option<sqlx::Error>,
    pub(crate) answer: oneshot::Sender<Settled>,
}

/// The settler's answer to a [`Finished`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Ended(TurnEnd),
    /// The successes are recorded, and the claim stands.
    Stays {
        paused: bool,
    },
    /// The database refused one of the successes. Nothing was recorded.
    Refused,
    /// A row of the successes is locked, perhaps by the turn's own handler. Nothing was recorded.
    Skipped,
}

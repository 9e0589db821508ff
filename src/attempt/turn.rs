//! The data of a claimed turn: what it runs, how it ended, and what is still to be recorded.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::attempt::handler::ErasedHandler;
use crate::job::outcome::{Outcome, RunResult};
use crate::job::queue_options::QueueOptions;
use crate::liveness::context::Context;
use crate::liveness::leases::LeaseGuard;
use crate::liveness::sessions::Signals;
use crate::slots::queue_slots::SlotUsage;
use crate::store::{Claim, KeepFinished, UnrecordedSuccess};

/// A queue as one processor runs it.
pub(crate) struct QueueRuntime {
    pub(crate) name: Arc<str>,
    pub(crate) options: QueueOptions,
    pub(crate) keep: KeepFinished,
    pub(crate) handler: Box<dyn ErasedHandler>,
    /// Where finished jobs go that a lease keeps.
    pub(crate) settler: mpsc::Sender<Finished>,
}

impl QueueRuntime {
    pub(crate) fn new(
        options: QueueOptions,
        handler: Box<dyn ErasedHandler>,
        settler: mpsc::Sender<Finished>,
    ) -> Self {
        Self { name: options.name().into(), keep: (&options).into(), options, handler, settler }
    }
}

/// How an attempt ended for its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// An outcome was recorded.
    Finished,
    /// A success was recorded, and nothing is due because of it: the group has no other job.
    Drained,
    /// An outcome was recorded, and the claim stands: the turn goes on with the next job.
    Stays,
    /// A shutdown gave the job back.
    Released,
    /// Nothing was recorded: the claim was lost.
    Lost,
}

/// One claimed job on its way, and those that were claimed to run after it.
#[derive(Clone)]
pub(crate) struct ClaimedTurn {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: Arc<QueueRuntime>,
    pub(crate) claim: Claim,
    /// Jobs of the turn that succeeded before it, and are recorded together with it.
    pub(crate) done: Vec<UnrecordedSuccess>,
    /// What the claim gets again when its turn goes on, where a lease keeps it.
    pub(crate) lease: Option<Duration>,
    /// The turn ends with this job.
    pub(crate) last: bool,
    /// No handler of the turn runs at the moment.
    pub(crate) idle: bool,
    /// The slots of its queue, where its turn may take more jobs than were claimed together.
    pub(crate) open: Option<ChainWindow>,
}

impl ClaimedTurn {
    pub(crate) fn new(context: Arc<Context>, queue: Arc<QueueRuntime>, claim: Claim) -> Self {
        Self {
            context,
            queue,
            claim,
            done: Vec::new(),
            lease: None,
            last: false,
            idle: false,
            open: None,
        }
    }

    /// Returns whether the claim stays for the next job of the turn.
    pub(crate) fn stays(&self, unrecorded: &Unrecorded) -> bool {
        matches!(unrecorded, Unrecorded::Outcome(Outcome::Succeeded { .. }))
            && !self.claim.behind.is_empty()
            && !self.last
            && !self.context.stop.is_cancelled()
    }
}

/// A turn that goes on for a moment while no other group waits.
#[derive(Clone)]
pub(crate) struct ChainWindow {
    pub(in crate::attempt) slots: Arc<SlotUsage>,
    pub(in crate::attempt) since: Instant,
    /// Of the job that runs.
    pub(in crate::attempt) began: Instant,
    pub(in crate::attempt) jobs: usize,
}

/// What is still to be recorded of a turn.
pub(crate) enum Unrecorded {
    /// A result. What follows from it is decided with the record.
    Result(RunResult),
    /// What was decided. Each further attempt to record it writes the same.
    Outcome(Outcome),
    /// Nothing but earlier successes of the turn, which goes on.
    EarlierOnly,
}

/// A job whose handler has ended, or successes of a turn that goes on.
pub(crate) struct Finished {
    pub(crate) run: ClaimedTurn,
    pub(crate) unrecorded: Unrecorded,
    /// Its lease is extended until the outcome is written; none: whoever runs the turn sees to that.
    #[allow(dead_code)] // For its drop.
    pub(crate) guard: Option<LeaseGuard>,
    pub(crate) signals: Signals,
    pub(crate) since: Instant,
    pub(crate) answer: oneshot::Sender<Settled>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Ended(TurnEnd),
    /// The successes are recorded, and the claim stands.
    Stays {
        paused: bool,
    },
    /// The database refuses one of the successes. Nothing was recorded.
    Refused,
    /// Somebody has a row of the successes, perhaps the turn's own handler. Nothing was recorded.
    Skipped,
}

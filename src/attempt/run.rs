//! One attempt of one claimed job: hold, handle, decide, settle.

use std::collections::HashMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::attempt::active_job::{ActiveJob, Keeper, Lease, Locks, Savepoint, leave_savepoint};
use crate::attempt::chain::OpenTurn;
use crate::attempt::connection::{NextJob, SlotConnection};
use crate::attempt::failure::{lost_connection, lost_lease, returned};
use crate::attempt::handler::ErasedHandler;
use crate::attempt::hold::hold_known;
use crate::attempt::settle::{ANSWER_LIMIT, Late};
use crate::attempt::settle_batch::{Finished, Settled};
use crate::error::BackgroundError;
use crate::job::group_plan::Go;
use crate::job::job::FailureKind;
use crate::job::outcome::RunResult;
use crate::job::queue_options::QueueOptions;
use crate::liveness::context::Shared;
use crate::liveness::sessions::Signals;
use crate::slots::queue_slots::Occupied;
use crate::store::{Done, HeldJob, Keep, Started};

/// How long a handler that must stop may wind up after [`ActiveJob::cancelled`] resolved, before it is dropped.
/// With `monitor::LIMIT` it stays below the grace of a take-over.
const WIND_UP: Duration = Duration::from_millis(150);

/// A queue as one processor runs it.
pub(crate) struct QueueRuntime {
    pub(crate) name: Arc<str>,
    pub(crate) options: QueueOptions,
    pub(crate) keep: Keep,
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
pub(crate) enum End {
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

/// What stopped a handler before it returned.
enum Stopped {
    TimedOut(Duration),
    HoldLost,
    Deadline,
}

/// One claimed job on its way, and those that were claimed to run after it.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<QueueRuntime>,
    pub(crate) claim: Started,
    /// Jobs of the turn that succeeded before it, and are recorded together with it.
    pub(crate) done: Vec<Done>,
    /// What the claim gets again when its turn goes on, where a lease keeps it.
    pub(crate) lease: Option<Duration>,
    /// The turn ends with this job.
    pub(crate) last: bool,
    /// No handler of the turn runs at the moment.
    pub(crate) idle: bool,
    /// The slots of its queue, where its turn may take more jobs than were claimed together.
    pub(crate) open: Option<OpenTurn>,
}

impl Run {
    pub(crate) fn new(shared: Arc<Shared>, queue: Arc<QueueRuntime>, claim: Started) -> Self {
        Self {
            shared,
            queue,
            claim,
            done: Vec::new(),
            lease: None,
            last: false,
            idle: false,
            open: None,
        }
    }

    /// Whether the turn goes on after this result.
    pub(crate) fn stays(&self, result: &RunResult) -> bool {
        matches!(result, RunResult::Succeeded(_))
            && !self.claim.behind.is_empty()
            && !self.last
            && !self.shared.stop.is_cancelled()
    }

    /// Runs the attempt, and those of the jobs behind it, to their ends, each in a transaction that holds its job. On
    /// return nothing of them is held by this process. `known` is what the claim has read of them.
    ///
    /// Says how the last one ended, and gives back the connection, if that can be used again.
    pub(crate) async fn into_end(
        mut self,
        mut known: HashMap<i64, HeldJob>,
        mut conn: SlotConnection,
    ) -> (End, Option<SlotConnection>) {
        let mut enqueued = false;
        while let Some(known_job) = known.remove(&self.claim.job) {
            match self.run_one(known_job, conn).await {
                (End::Stays, Some(mut left)) => {
                    if let Some(next) = left.next.take() {
                        let NextJob { claim, known: job, behind_tx } = *next;
                        enqueued |= behind_tx;
                        known.insert(claim.job, job);
                        self.goes_on(claim);
                    } else if !self.claim.advance() {
                        return (End::Lost, Some(left));
                    }
                    conn = left;
                }
                (End::Drained, left) if enqueued => return (End::Finished, left),
                ended => return ended,
            }
        }
        (End::Lost, Some(conn))
    }

    async fn run_one(
        &self,
        known: HeldJob,
        mut conn: SlotConnection,
    ) -> (End, Option<SlotConnection>) {
        let shared = Arc::clone(&self.shared);
        let mut counted = shared.counters.begin();
        let held = hold_known(&self.shared, &self.queue.name, &self.claim, known, &mut conn);
        let (held, since) = match timeout(ANSWER_LIMIT, held).await {
            Ok(Ok(Some(held))) => held,
            Ok(Ok(None)) => return (End::Lost, self.not_held(conn, None)),
            Ok(Err(error)) => return (End::Lost, self.not_held(conn, Some(error))),
            Err(_) => {
                let error = io::Error::from(io::ErrorKind::TimedOut);
                return (End::Lost, self.not_held(conn, Some(error.into())));
            }
        };
        let signals = Signals::default();
        let watch = self.shared.monitor.watch(self.claim.job, held.session, since, signals.clone());
        let keeper = Keeper::Locks(Locks { conn, session: held.session, watch });
        let mut job = self.active(&held, keeper);
        let (result, clean) = self.handle(&mut job, &held, &signals).await;
        let (end, conn) = self.settle(job, held, &signals, result, clean).await;
        match end {
            End::Finished | End::Drained | End::Stays => counted.finished(),
            End::Released => counted.released(),
            End::Lost => {}
        }
        (end, conn)
    }

    fn not_held(
        &self,
        conn: SlotConnection,
        source: Option<sqlx::Error>,
    ) -> Option<SlotConnection> {
        let broken = source.is_some();
        self.shared.report(&BackgroundError::Hold {
            queue: self.queue.name.to_string(),
            job: self.claim.job,
            source,
        });
        if broken {
            conn.close();
            return None;
        }
        Some(conn)
    }

    pub(crate) fn active(&self, held: &HeldJob, keeper: Keeper) -> ActiveJob {
        ActiveJob {
            id: self.claim.job,
            queue: Arc::clone(&self.queue.name),
            group: self.claim.group.clone(),
            attempt: held.attempt,
            max_attempts: held.max_attempts.unwrap_or(self.queue.options.retry.max_attempts),
            name: held.name.clone(),
            reference: held.reference.clone(),
            priority: held.priority,
            content_type: held.data.content_type().map(str::to_owned),
            created_at: held.created_at,
            run_at: held.run_at,
            keeper,
            savepoint: Savepoint::None,
            cancelled: CancellationToken::new(),
            slot: None,
        }
    }

    /// Runs the handler and leaves its savepoint. The second value says whether the connection is in a known state: it
    /// is not where a handler was dropped after it had begun to use it, or had ended the transaction itself.
    pub(crate) async fn handle(
        &self,
        job: &mut ActiveJob,
        held: &HeldJob,
        signals: &Signals,
    ) -> (RunResult, bool) {
        if held.cancel_requested {
            return (RunResult::Cancelled, true);
        }
        match self.claim.go {
            Go::Run => {}
            Go::Exhausted => return (RunResult::Exhausted, true),
            Go::Expired(at) => return (RunResult::Expired(at), true),
            Go::Ignored => return (RunResult::Ignored, true),
        }
        let limit = held.timeout.or(self.queue.options.timeout);
        let cancelled = job.cancelled.clone();
        let stopped = {
            let run = async {
                let run = AssertUnwindSafe(self.queue.handler.run(job, &held.data)).catch_unwind();
                let result = returned(run.await);
                // Within the same limits: a query that the handler gave up half-way has to end first.
                match leave_savepoint(job, result).await {
                    Ok(result) => (result, true),
                    Err(result) => (result, false),
                }
            };
            let mut run = pin!(run);
            let mut expired = pin!(expired(limit));
            let mut asked = false;
            let stopped = loop {
                tokio::select! {
                    biased;
                    ended = &mut run => return ended,
                    () = signals.lost.cancelled() => break Stopped::HoldLost,
                    () = &mut expired => break Stopped::TimedOut(limit.unwrap_or_default()),
                    () = self.shared.release.cancelled() => break Stopped::Deadline,
                    () = signals.cancel.cancelled(), if !asked => {
                        asked = true;
                        cancelled.cancel();
                    }
                }
            };
            cancelled.cancel();
            if let Ok((result, clean)) = timeout(WIND_UP, &mut run).await
                && matches!(stopped, Stopped::Deadline)
            {
                // An error because of the deadline is no failure of the job.
                return match result {
                    RunResult::Succeeded(_) => (result, clean),
                    _ => (RunResult::Released, clean),
                };
            }
            stopped
        };
        let clean = job.savepoint == Savepoint::None;
        let result = match stopped {
            Stopped::TimedOut(limit) => {
                let message = format!("the handler did not return within {limit:?}");
                RunResult::Broken(FailureKind::Timeout, message)
            }
            Stopped::HoldLost if job.is_leased() => return (lost_lease(), false),
            Stopped::HoldLost => return (lost_connection(), false),
            Stopped::Deadline => RunResult::Released,
        };
        (result, clean)
    }

    /// Records what came of the run: in the hold's own transaction if that still stands, else by token on another
    /// connection; in a batch where a lease keeps the job.
    pub(crate) async fn settle(
        &self,
        job: ActiveJob,
        held: HeldJob,
        signals: &Signals,
        result: RunResult,
        clean: bool,
    ) -> (End, Option<SlotConnection>) {
        match job.keeper {
            // Apart: it is large, and would be moved about with each job that a lease keeps.
            Keeper::Locks(locks) => {
                Box::pin(self.settle_held(locks, held, signals, result, clean)).await
            }
            Keeper::Lease(lease) => (self.settle_in_batch(lease, result, job.slot).await, None),
        }
    }

    async fn settle_held(
        &self,
        locks: Locks,
        held: HeldJob,
        signals: &Signals,
        result: RunResult,
        clean: bool,
    ) -> (End, Option<SlotConnection>) {
        let Locks { mut conn, session, watch } = locks;
        let late = if clean {
            let settled = tokio::select! {
                settled = self.settle_in_hold(&mut conn, &held, result) => settled,
                () = signals.lost.cancelled() => Err(Late(Some(lost_connection()), None)),
            };
            match settled {
                Ok(end) => return (end, Some(conn)),
                Err(late) => late,
            }
        } else {
            Late(Some(result), None)
        };
        self.report_lost(&late);
        // Closed before the record, which needs the locks that its session may still have.
        conn.close();
        drop(watch);
        let end = self.settle_by_token(session, late).await;
        (end, None)
    }

    /// The slot is free again when the settler has the rest.
    async fn settle_in_batch(
        &self,
        lease: Lease,
        result: RunResult,
        slot: Option<Occupied>,
    ) -> End {
        let late = Late(Some(result), None);
        self.report_lost(&late);
        let settler = self.queue.settler.clone();
        let (answer, end) = oneshot::channel();
        let signals = lease.kept.signals.clone();
        let (kept, since) = (Some(lease.kept), Instant::now());
        let finished = Finished { run: self.clone(), late, kept, signals, since, answer };
        // The settler outlives the slots, unless the runtime ends; the lease runs out then.
        if settler.send(finished).await.is_err() {
            return End::Lost;
        }
        drop(slot);
        match end.await {
            Ok(Settled::Ended(end)) => end,
            _ => End::Lost,
        }
    }

    fn report_lost(&self, late: &Late) {
        if matches!(late, Late(Some(RunResult::Broken(FailureKind::ConnectionLost, _)), _)) {
            let (queue, job) = (self.queue.name.to_string(), self.claim.job);
            self.shared.report(&BackgroundError::HoldLost { queue, job });
        }
    }
}

/// Never, without a limit.
async fn expired(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}

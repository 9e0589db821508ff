//! One attempt of one claimed job: hold, handle, decide, settle.

use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::active_job::{ActiveJob, Savepoint, leave_savepoint};
use crate::connection::SlotConnection;
use crate::error::BackgroundError;
use crate::handler::ErasedHandler;
use crate::job::FailureKind;
use crate::mishap::{broken, lost_connection, returned};
use crate::monitor::Signals;
use crate::outcome::{self, Attempt, Outcome, RunResult};
use crate::queue::{OutOfAttempts, QueueOptions};
use crate::shared::Shared;
use crate::store::{
    HeldJob, HoldAnswer, Keep, SessionId, Started, begin_hold, begin_short, gave_up_waiting,
};

/// How long a handler that must stop may wind up after [`ActiveJob::cancelled`] resolved, before it is dropped.
/// With `monitor::LIMIT` it stays below the grace of a take-over.
const WIND_UP: Duration = Duration::from_millis(150);
/// Between two tries at a row that somebody is looking at.
const RETRY_SKIPPED: Duration = Duration::from_millis(4);
/// How long a hold tries; an adopter or a claim looks at a row for milliseconds.
const HOLD_LIMIT: Duration = Duration::from_secs(2);
/// A hold, or one try to record, that takes longer has lost its server, and nobody else would notice.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long an outcome is tried to be recorded on another connection, before it is left to a take-over.
const RECORD_LIMIT: Duration = Duration::from_secs(15);

/// A queue as one processor runs it.
pub(crate) struct QueueRuntime {
    pub(crate) name: Arc<str>,
    pub(crate) options: QueueOptions,
    pub(crate) keep: Keep,
    pub(crate) handler: Box<dyn ErasedHandler>,
}

impl QueueRuntime {
    pub(crate) fn new(options: QueueOptions, handler: Box<dyn ErasedHandler>) -> Self {
        Self { name: options.name().into(), keep: (&options).into(), options, handler }
    }
}

/// How an attempt ended for its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// An outcome was recorded.
    Finished,
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

/// What is to be recorded late: first a result, then what was decided about it, and the same for every further try.
struct Late(Option<RunResult>, Option<Outcome>);

/// One claimed job on its way.
pub(crate) struct Run {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<QueueRuntime>,
    pub(crate) claim: Started,
}

impl Run {
    /// Runs the attempt to its end. On return nothing of the job is held by this process.
    ///
    /// Gives back the connection, if that can be used again.
    pub(crate) async fn into_end(self, mut conn: SlotConnection) -> Option<SlotConnection> {
        let mut counted = self.shared.counters.begin();
        let (held, since) = match timeout(ANSWER_LIMIT, self.hold(&mut conn)).await {
            Ok(Ok(Some(held))) => held,
            Ok(Ok(None)) => return self.not_held(conn, None),
            Ok(Err(error)) => return self.not_held(conn, Some(error)),
            Err(_) => {
                let error = io::Error::from(io::ErrorKind::TimedOut);
                return self.not_held(conn, Some(error.into()));
            }
        };
        let watch = self.shared.monitor.watch(self.claim.job, held.session, since);
        let mut job = self.active(&held, conn);
        let (result, clean) = self.handle(&mut job, &held, &watch.signals).await;
        let (end, conn) = self.settle(job, held, &watch.signals, result, clean).await;
        match end {
            End::Finished => counted.finished(),
            End::Released => counted.released(),
            End::Lost => {}
        }
        conn
    }

    /// Takes the job's locks on the slot's own connection, and clears a first look's doubt.
    ///
    /// Also gives the time at which the session was asked, and so lived.
    async fn hold(
        &self,
        conn: &mut SlotConnection,
    ) -> Result<Option<(HeldJob, Instant)>, sqlx::Error> {
        let Shared { store, limits, .. } = &*self.shared;
        let deadline = Instant::now() + HOLD_LIMIT;
        begin_hold(conn, limits).await?;
        while Instant::now() < deadline {
            let asked_at = Instant::now();
            let answer = match store.hold(conn, &self.queue.name, &self.claim).await {
                Err(error) if gave_up_waiting(&error) => {
                    PgTransactionManager::rollback(conn).await?;
                    begin_hold(conn, limits).await?;
                    continue;
                }
                answer => answer?,
            };
            match answer {
                HoldAnswer::Held(held) if !held.doubted => return Ok(Some((*held, asked_at))),
                HoldAnswer::Held(_) => {
                    PgTransactionManager::rollback(conn).await?;
                    begin_short(conn).await?;
                    store.trust(conn, &self.queue.name, &self.claim).await?;
                    PgTransactionManager::commit(conn).await?;
                    begin_hold(conn, limits).await?;
                }
                HoldAnswer::Skipped => sleep(RETRY_SKIPPED).await,
                HoldAnswer::Lost => break,
            }
        }
        PgTransactionManager::rollback(conn).await?;
        Ok(None)
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

    fn active(&self, held: &HeldJob, conn: SlotConnection) -> ActiveJob {
        ActiveJob {
            id: self.claim.job,
            queue: Arc::clone(&self.queue.name),
            group: self.claim.group.clone(),
            attempt: held.attempt,
            max_attempts: held.max_attempts.unwrap_or(self.queue.options.retry.max_attempts),
            created_at: held.created_at,
            run_at: held.run_at,
            conn,
            savepoint: Savepoint::None,
            cancelled: CancellationToken::new(),
        }
    }

    /// Runs the handler and leaves its savepoint. The second value says whether the connection is in a known state: it
    /// is not where a handler was dropped after it had begun to use it, or had ended the transaction itself.
    async fn handle(
        &self,
        job: &mut ActiveJob,
        held: &HeldJob,
        signals: &Signals,
    ) -> (RunResult, bool) {
        if held.cancel_requested {
            return (RunResult::Cancelled, true);
        }
        if !self.claim.run {
            return (RunResult::Exhausted, true);
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
            Stopped::HoldLost => return (lost_connection(), false),
            Stopped::Deadline => RunResult::Released,
        };
        (result, clean)
    }

    /// Records what came of the run: in the hold's own transaction if that still stands, else by token on another
    /// connection.
    async fn settle(
        &self,
        mut job: ActiveJob,
        held: HeldJob,
        signals: &Signals,
        result: RunResult,
        clean: bool,
    ) -> (End, Option<SlotConnection>) {
        let late = if clean {
            let settled = tokio::select! {
                settled = self.settle_in_hold(&mut job, &held, result) => settled,
                () = signals.lost.cancelled() => Err(Late(Some(lost_connection()), None)),
            };
            match settled {
                Ok(end) => return (end, Some(job.conn)),
                Err(late) => late,
            }
        } else {
            Late(Some(result), None)
        };
        if matches!(late, Late(Some(RunResult::Broken(FailureKind::ConnectionLost, _)), _)) {
            let (queue, job) = (self.queue.name.to_string(), self.claim.job);
            self.shared.report(&BackgroundError::HoldLost { queue, job });
        }
        // Closed before the record, which needs the locks that its session may still have.
        job.conn.close();
        let end = self.settle_by_token(held.session, late).await;
        (end, None)
    }

    /// Settles in the transaction that holds the job. An error gives back what is to be recorded elsewhere.
    async fn settle_in_hold(
        &self,
        job: &mut ActiveJob,
        held: &HeldJob,
        result: RunResult,
    ) -> Result<End, Late> {
        let committing = matches!(result, RunResult::Succeeded(_));
        let Ok(asked) = self.cancel_requested(&mut job.conn, &result).await else {
            return Err(Late(Some(result), None));
        };
        let outcome = self.decide(held, result, asked);
        let recorded = async {
            self.record(&mut job.conn, held, &outcome).await?;
            PgTransactionManager::commit(&mut job.conn).await
        };
        match recorded.await {
            Ok(()) => Ok(self.ended(&outcome)),
            // The job's row is as it was before. A success is none without its commit; all else is recorded as decided.
            Err(error) if committing => Err(Late(Some(broken(&error, true)), None)),
            Err(_) => Err(Late(None, Some(outcome))),
        }
    }

    /// Records an outcome on another connection: the hold's own is gone, or in an unknown state.
    async fn settle_by_token(&self, session: SessionId, mut late: Late) -> End {
        let deadline = Instant::now() + RECORD_LIMIT;
        let mut pause = RETRY_SKIPPED;
        let mut source = None;
        while Instant::now() < deadline {
            // Where only the answer was lost, the next try finds that the token is gone.
            match timeout(ANSWER_LIMIT, self.try_by_token(session, &mut late)).await {
                Ok(Ok(Some(end))) => return end,
                Ok(Ok(None)) => {}
                failed => {
                    pause = (pause * 2).min(Duration::from_millis(500));
                    source = Some(match failed {
                        Ok(Err(error)) => error,
                        _ => io::Error::from(io::ErrorKind::TimedOut).into(),
                    });
                }
            }
            sleep(pause).await;
        }
        let (queue, job) = (self.queue.name.to_string(), self.claim.job);
        self.shared.report(&BackgroundError::Settle { queue, job, source });
        End::Lost
    }

    /// One try; none: somebody has a row for a moment, perhaps our own old session.
    async fn try_by_token(
        &self,
        session: SessionId,
        late: &mut Late,
    ) -> Result<Option<End>, sqlx::Error> {
        let store = &self.shared.store;
        let mut conn = self.shared.side.acquire().await?;
        // A try that is given up leaves it in an unknown state.
        conn.close_on_drop();
        let mut conn = SlotConnection::from(conn);
        store.terminate(&mut conn, session).await?;
        begin_short(&mut conn).await?;
        let held = match store.hold(&mut conn, &self.queue.name, &self.claim).await? {
            HoldAnswer::Held(held) => held,
            HoldAnswer::Skipped => {
                PgTransactionManager::rollback(&mut conn).await?;
                return Ok(None);
            }
            HoldAnswer::Lost => {
                PgTransactionManager::rollback(&mut conn).await?;
                let (queue, job) = (self.queue.name.to_string(), self.claim.job);
                self.shared.report(&BackgroundError::Settle { queue, job, source: None });
                return Ok(Some(End::Lost));
            }
        };
        if let Some(run) = &late.0 {
            let asked = self.cancel_requested(&mut conn, run).await?;
            late.1 = late.0.take().map(|result| self.decide(&held, result, asked));
        }
        let Some(outcome) = &late.1 else {
            return Ok(Some(End::Lost));
        };
        self.record(&mut conn, &held, outcome).await?;
        PgTransactionManager::commit(&mut conn).await?;
        Ok(Some(self.ended(outcome)))
    }

    /// Whether somebody asked to cancel the job, where that makes a difference.
    async fn cancel_requested(
        &self,
        conn: &mut PgConnection,
        result: &RunResult,
    ) -> Result<bool, sqlx::Error> {
        Ok(!matches!(result, RunResult::Succeeded(_))
            && self.shared.store.cancel_requested(conn, self.claim.job).await?)
    }

    fn decide(&self, held: &HeldJob, result: RunResult, cancel_requested: bool) -> Outcome {
        let options = &self.queue.options;
        let attempt = Attempt {
            number: held.attempt,
            counted: held.attempt - held.forgiven.min(held.attempt),
            max: held.max_attempts.unwrap_or(options.retry.max_attempts),
            cancel_requested,
        };
        // Without a group there is nothing to halt.
        let then = match self.claim.group {
            Some(_) => options.out_of_attempts,
            None => OutOfAttempts::Continue,
        };
        outcome::decide(result, attempt, &options.retry, then, fastrand::f64())
    }

    async fn record(
        &self,
        conn: &mut PgConnection,
        held: &HeldJob,
        outcome: &Outcome,
    ) -> Result<(), sqlx::Error> {
        let store = &self.shared.store;
        store
            .settle(conn, &self.queue.name, &self.claim, outcome, self.queue.keep, held.followed)
            .await
    }

    fn ended(&self, outcome: &Outcome) -> End {
        let job = self.claim.job;
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        match outcome {
            Outcome::Succeeded { .. } => tracing::debug!(queue, group, job, "job succeeded"),
            Outcome::Cancelled => tracing::info!(queue, group, job, "job cancelled"),
            Outcome::Released => {
                tracing::info!(queue, group, job, "job released");
                return End::Released;
            }
            Outcome::Retried { failure, delay } => {
                let (kind, attempt) = (failure.kind, failure.attempt);
                let error = &failure.message;
                tracing::warn!(
                    queue,
                    group,
                    job,
                    attempt,
                    ?kind,
                    error,
                    ?delay,
                    "attempt failed, will be retried"
                );
            }
            Outcome::Failed { failure, halt } => {
                let (kind, attempt) = (failure.kind, failure.attempt);
                let error = &failure.message;
                tracing::error!(
                    queue,
                    group,
                    job,
                    attempt,
                    ?kind,
                    error,
                    group_halted = halt,
                    "job failed"
                );
            }
        }
        End::Finished
    }
}

/// Never, without a limit.
async fn expired(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}

//! Recording what came of an attempt: in the transaction that holds the job, or by token on another connection.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::connection::{PreheldJob, SlotConnection};
use crate::attempt::failure::broken;
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::turn::{ClaimedTurn, TurnEnd, Unrecorded};
use crate::error::BackgroundError;
use crate::job::job::FailureKind;
use crate::job::outcome::{self, Attempt, Outcome, RunResult};
use crate::job::queue_options::OutOfAttempts;
use crate::job::redact::redact_detail;
use crate::liveness::context::Context;
use crate::store::WorkConnection;
use crate::store::{
    AfterSettle, HeldJob, HoldAnswer, PINNED_PLANS, SessionId, UnrecordedSuccess, begin_short,
    in_tx,
};

/// A hold, or one try to record, that takes longer has lost its server, and nobody else would notice.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long an outcome is tried to be recorded on another connection, before it is left to a take-over.
pub(crate) const RECORD_LIMIT: Duration = Duration::from_secs(15);

impl Unrecorded {
    /// The database refused to record a success: the attempt has failed.
    pub(crate) fn refused(&mut self, error: &sqlx::Error) {
        if matches!(
            self,
            Self(Some(RunResult::Succeeded(_)), _) | Self(_, Some(Outcome::Succeeded { .. }))
        ) {
            *self = Self(Some(broken(error, true)), None);
        }
    }

    /// There is nothing but what was done before: the turn goes on.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self(None, None))
    }
}

/// Whether the database will never take what it was given. Not so when it gave up waiting, is short of something, or ends
/// the session: classes 08, 40, 53, 55, 57 and 58.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    let transient =
        |code: &str| ["08", "40", "53", "55", "57", "58"].contains(&&code[..2.min(code.len())]);
    let error = error.as_database_error();
    error.is_some_and(|error| !error.code().is_some_and(|code| transient(&code)))
}

/// What one try to record came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleAttempt {
    Recorded,
    /// Successes were recorded, and the turn goes on, unless somebody paused the queue or the group.
    Stays {
        paused: bool,
    },
    /// The turn was passed on: somebody paused the queue or the group, or all that there was to record had been recorded.
    Passed,
    /// Somebody has a row for a moment, perhaps our own old session.
    Skipped,
    /// The claim was taken over.
    Lost,
}

impl ClaimedTurn {
    /// Settles in the transaction that holds the job. An error gives back what is to be recorded elsewhere.
    pub(crate) async fn settle_in_hold(
        &self,
        conn: &mut SlotConnection,
        held: &HeldJob,
        result: RunResult,
    ) -> Result<TurnEnd, Unrecorded> {
        let committing = matches!(result, RunResult::Succeeded(_));
        if self.stays(&result)
            && let RunResult::Succeeded(result) = result
        {
            let stayed = self.stay_in_hold(conn, result).await;
            return stayed.map_err(|error| Unrecorded(Some(broken(&error, true)), None));
        }
        if let RunResult::Succeeded(result) = &result
            && self.claim.behind.is_empty()
            && self.done.is_empty()
        {
            if !self.may_chain(held) {
                let succeeded = self.succeed_in_one_trip(conn, result).await;
                return succeeded.map_err(|error| Unrecorded(Some(broken(&error, true)), None));
            }
            let then = conn.then();
            let succeeded = self.succeed_and_chain(conn, result, then).await;
            return succeeded.map_err(|error| match then {
                // It has a part in the transaction.
                AfterSettle::Nothing => Unrecorded(Some(broken(&error, true)), None),
                // Perhaps it was the next job that could not be had.
                _ => Unrecorded(Some(RunResult::Succeeded(result.clone())), None),
            });
        }
        // The statements of all else have their plans pinned.
        if conn.begun && sqlx::raw_sql(PINNED_PLANS).execute(&mut **conn).await.is_err() {
            return Err(Unrecorded(Some(result), None));
        }
        let Ok(asked) = self.cancel_requested(conn, &result).await else {
            return Err(Unrecorded(Some(result), None));
        };
        let mut outcome = self.decide(held, result, asked);
        let recorded = async {
            self.record_done(conn).await?;
            self.apply_group_policy(conn, &mut outcome).await?;
            self.record(conn, held, &outcome).await?;
            conn.commit().await
        };
        match recorded.await {
            Ok(()) => Ok(self.ended(&outcome)),
            // The job's row is as it was before. A success is none without its commit; all else is recorded as decided.
            Err(error) if committing => Err(Unrecorded(Some(broken(&error, true)), None)),
            Err(_) => Err(Unrecorded(None, Some(outcome))),
        }
    }

    /// Records a success, passes the turn on and commits, in one round trip.
    async fn succeed_in_one_trip(
        &self,
        conn: &mut SlotConnection,
        result: &str,
    ) -> Result<TurnEnd, sqlx::Error> {
        let keep = self.queue.keep.succeeded;
        let then = conn.then();
        let settled =
            self.context.store.quick_settle(conn, &self.claim, result, keep, then).await?;
        conn.committed(then).await?;
        let end = self.ended(&Outcome::Succeeded { result: String::new() });
        // A handler that used the transaction may have enqueued in it.
        Ok(if settled.drained && then == AfterSettle::Commit { TurnEnd::Drained } else { end })
    }

    /// Records a success, and keeps the claim for the next job of the turn, unless somebody paused the queue or the group.
    async fn stay_in_hold(
        &self,
        conn: &mut SlotConnection,
        result: String,
    ) -> Result<TurnEnd, sqlx::Error> {
        let Context { store, .. } = &*self.context;
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        if self.lease.is_none() {
            return self.stay_in_one_trip(conn, &result).await;
        }
        let mut done = self.done.clone();
        done.push(UnrecordedSuccess { job: self.claim.job, result });
        let paused = store.record_done(conn, queue, group, &done, self.queue.keep).await?;
        if paused {
            store.end_turn(conn, queue, &self.claim).await?;
        } else if let Some(lease) = self.lease {
            store.clear_suspicion(conn, &self.claim, lease).await?;
        }
        conn.commit().await?;
        tracing::debug!(queue, group, job = self.claim.job, "job succeeded");
        Ok(if paused { TurnEnd::Finished } else { TurnEnd::Stays })
    }

    /// The same in one round trip, with the hold of the next job.
    async fn stay_in_one_trip(
        &self,
        conn: &mut SlotConnection,
        result: &str,
    ) -> Result<TurnEnd, sqlx::Error> {
        let (claim, keep) = (&self.claim, self.queue.keep.succeeded);
        let then = if conn.then() == AfterSettle::Commit {
            AfterSettle::Hold
        } else {
            AfterSettle::Nothing
        };
        let asked_at = Instant::now();
        let settled = self.context.store.quick_settle(conn, claim, result, keep, then).await?;
        conn.committed(then).await?;
        if then == AfterSettle::Hold {
            match (settled.held, claim.behind.first()) {
                (Some(pid), Some(&job)) => conn.preheld = Some(PreheldJob { job, pid, asked_at }),
                _ => conn.rollback().await?,
            }
        }
        let (queue, group) = (&*self.queue.name, claim.group.as_deref());
        tracing::debug!(queue, group, job = claim.job, "job succeeded");
        Ok(if settled.ended { TurnEnd::Finished } else { TurnEnd::Stays })
    }

    /// Records what succeeded before in the same turn.
    async fn record_done(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        if self.done.is_empty() {
            return Ok(false);
        }
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        self.context.store.record_done(conn, queue, group, &self.done, self.queue.keep).await
    }

    /// Records an outcome on another connection: the hold's own is gone, or in an unknown state.
    pub(crate) async fn settle_by_token(
        &self,
        session: SessionId,
        mut unrecorded: Unrecorded,
    ) -> TurnEnd {
        let mut run = self.clone();
        let deadline = Instant::now() + RECORD_LIMIT;
        let mut pause = RETRY_SKIPPED;
        let mut source = None;
        while Instant::now() < deadline {
            // Where only the answer was lost, the next try finds that the token is gone.
            match timeout(ANSWER_LIMIT, run.try_by_token(session, &mut unrecorded)).await {
                Ok(Ok(Some(end))) => return end,
                Ok(Ok(None)) => {}
                failed => {
                    pause = (pause * 2).min(Duration::from_millis(500));
                    source = Some(match failed {
                        Ok(Err(error)) => {
                            if is_refusal(&error) {
                                // Its next try records what comes of that.
                                run.refused(&mut unrecorded, &error);
                            }
                            error
                        }
                        _ => io::Error::from(io::ErrorKind::TimedOut).into(),
                    });
                }
            }
            sleep(pause).await;
        }
        let (queue, job) = (self.queue.name.to_string(), self.claim.job);
        self.context.report(&BackgroundError::Settle {
            queue,
            job,
            source: source.map(redact_detail),
        });
        TurnEnd::Lost
    }

    /// The database refused to record a success. If that is perhaps one of several, the first is recorded alone, with what
    /// comes of it, and the others go back: they run again, behind it.
    pub(crate) fn refused(&mut self, unrecorded: &mut Unrecorded, error: &sqlx::Error) {
        if self.done.is_empty() {
            unrecorded.refused(error);
            return;
        }
        let first = self.done.remove(0);
        let later = self.done.drain(..).map(|done| done.job).chain([self.claim.job]);
        self.claim.behind = later.chain(self.claim.behind.drain(..)).collect();
        self.claim.job = first.job;
        *unrecorded = Unrecorded(Some(RunResult::Succeeded(first.result)), None);
    }

    /// One try; none: somebody has a row for a moment, perhaps our own old session.
    async fn try_by_token(
        &self,
        session: SessionId,
        unrecorded: &mut Unrecorded,
    ) -> Result<Option<TurnEnd>, sqlx::Error> {
        let mut conn = WorkConnection::from(self.context.side.acquire().await?);
        let store = &self.context.store;
        in_tx(&mut conn, async |conn| store.terminate(conn, session).await).await?;
        begin_short(&mut conn).await?;
        match self.try_unrecorded(&mut conn, unrecorded).await? {
            SettleAttempt::Recorded => {
                PgTransactionManager::commit(&mut conn).await?;
                conn.done();
                Ok(Some(self.ended_unrecorded(unrecorded)))
            }
            SettleAttempt::Passed => {
                PgTransactionManager::commit(&mut conn).await?;
                conn.done();
                Ok(Some(TurnEnd::Finished))
            }
            SettleAttempt::Skipped => {
                PgTransactionManager::rollback(&mut conn).await?;
                conn.done();
                Ok(None)
            }
            SettleAttempt::Stays { .. } | SettleAttempt::Lost => Ok(Some(self.claim_lost())),
        }
    }

    /// Locks the job by its token and writes its outcome, in the short transaction that is open on `conn`.
    pub(crate) async fn try_unrecorded(
        &self,
        conn: &mut PgConnection,
        unrecorded: &mut Unrecorded,
    ) -> Result<SettleAttempt, sqlx::Error> {
        let Context { store, .. } = &*self.context;
        let held = match store.hold(conn, &self.queue.name, &self.claim).await? {
            HoldAnswer::Held(held) => Some(held),
            // Where a turn goes on, the token outlives what an earlier try committed without an answer.
            HoldAnswer::Skipped if store.already_recorded(conn, &self.claim).await? => None,
            HoldAnswer::Skipped => return Ok(SettleAttempt::Skipped),
            HoldAnswer::Lost => return Ok(SettleAttempt::Lost),
        };
        let paused = self.record_done(conn).await?;
        if unrecorded.is_empty() && !(paused && self.idle) {
            return Ok(SettleAttempt::Stays { paused });
        }
        let Some(held) = held.filter(|_| !unrecorded.is_empty()) else {
            store.end_turn(conn, &self.queue.name, &self.claim).await?;
            return Ok(SettleAttempt::Passed);
        };
        if let Some(run) = &unrecorded.0 {
            let asked = self.cancel_requested(conn, run).await?;
            unrecorded.1 = unrecorded.0.take().map(|result| self.decide(&held, result, asked));
        }
        let Some(outcome) = &mut unrecorded.1 else {
            return Ok(SettleAttempt::Lost);
        };
        self.apply_group_policy(conn, outcome).await?;
        self.record(conn, &held, outcome).await?;
        Ok(SettleAttempt::Recorded)
    }

    /// What was recorded late has been committed.
    pub(crate) fn ended_unrecorded(&self, unrecorded: &Unrecorded) -> TurnEnd {
        match unrecorded {
            Unrecorded(Some(RunResult::Succeeded(_)), _) => {
                self.ended(&Outcome::Succeeded { result: String::new() })
            }
            Unrecorded(_, outcome) => {
                outcome.as_ref().map_or(TurnEnd::Lost, |outcome| self.ended(outcome))
            }
        }
    }

    /// Whether somebody asked to cancel the job, where that makes a difference.
    async fn cancel_requested(
        &self,
        conn: &mut PgConnection,
        result: &RunResult,
    ) -> Result<bool, sqlx::Error> {
        Ok(!matches!(result, RunResult::Succeeded(_))
            && self.context.store.cancel_requested(conn, self.claim.job).await?)
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

    /// A group may say itself what follows from a failure.
    async fn apply_group_policy(
        &self,
        conn: &mut PgConnection,
        outcome: &mut Outcome,
    ) -> Result<(), sqlx::Error> {
        if let (Outcome::Failed { then, failure }, Some(group)) = (outcome, &self.claim.group)
            // Nothing went wrong with that one.
            && failure.kind != FailureKind::Expired
        {
            let policy = self.context.store.group_policy(conn, &self.queue.name, group).await?;
            *then = policy.unwrap_or(*then);
        }
        Ok(())
    }

    async fn record(
        &self,
        conn: &mut PgConnection,
        held: &HeldJob,
        outcome: &Outcome,
    ) -> Result<(), sqlx::Error> {
        let store = &self.context.store;
        store
            .settle(conn, &self.queue.name, &self.claim, outcome, self.queue.keep, held.followed)
            .await
    }

    pub(crate) fn ended(&self, outcome: &Outcome) -> TurnEnd {
        let job = self.claim.job;
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        match outcome {
            Outcome::Succeeded { .. } => tracing::debug!(queue, group, job, "job succeeded"),
            Outcome::Cancelled => tracing::info!(queue, group, job, "job cancelled"),
            Outcome::Ignored => tracing::info!(queue, group, job, "job ignored: it is too old"),
            Outcome::Released => {
                tracing::info!(queue, group, job, "job released");
                return TurnEnd::Released;
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
            Outcome::Failed { failure, then } => {
                let (kind, attempt) = (failure.kind, failure.attempt);
                let error = &failure.message;
                tracing::error!(queue, group, job, attempt, ?kind, error, ?then, "job failed");
            }
        }
        TurnEnd::Finished
    }
}

//! Recording what came of an attempt: in the transaction that holds the job, or by token on another connection.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::connection::{HeldAhead, SlotConnection, WorkConnection};
use crate::attempt::failure::broken;
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::run::{End, Run};
use crate::error::BackgroundError;
use crate::job::job::FailureKind;
use crate::job::outcome::{self, Attempt, Outcome, RunResult};
use crate::job::queue_options::OutOfAttempts;
use crate::job::redact::quiet;
use crate::liveness::context::Shared;
use crate::store::{
    Done, HeldJob, HoldAnswer, PINNED_PLANS, SessionId, Then, begin_short, together,
};

/// A hold, or one try to record, that takes longer has lost its server, and nobody else would notice.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long an outcome is tried to be recorded on another connection, before it is left to a take-over.
pub(crate) const RECORD_LIMIT: Duration = Duration::from_secs(15);

/// What is to be recorded late: first a result, then what was decided about it, and the same for every further try.
pub(crate) struct Late(pub(crate) Option<RunResult>, pub(crate) Option<Outcome>);

impl Late {
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
pub(crate) enum Tried {
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

impl Run {
    /// Settles in the transaction that holds the job. An error gives back what is to be recorded elsewhere.
    pub(crate) async fn settle_in_hold(
        &self,
        conn: &mut SlotConnection,
        held: &HeldJob,
        result: RunResult,
    ) -> Result<End, Late> {
        let committing = matches!(result, RunResult::Succeeded(_));
        if self.stays(&result)
            && let RunResult::Succeeded(result) = result
        {
            let stayed = self.stay_in_hold(conn, result).await;
            return stayed.map_err(|error| Late(Some(broken(&error, true)), None));
        }
        if let RunResult::Succeeded(result) = &result
            && self.claim.behind.is_empty()
            && self.done.is_empty()
        {
            if !self.may_go_on(held) {
                let succeeded = self.succeed_at_once(conn, result).await;
                return succeeded.map_err(|error| Late(Some(broken(&error, true)), None));
            }
            let then = conn.then();
            let succeeded = self.succeed_and_go_on(conn, result, then).await;
            return succeeded.map_err(|error| match then {
                // It has a part in the transaction.
                Then::Nothing => Late(Some(broken(&error, true)), None),
                // Perhaps it was the next job that could not be had.
                _ => Late(Some(RunResult::Succeeded(result.clone())), None),
            });
        }
        // The statements of all else have their plans pinned.
        if conn.begun && sqlx::raw_sql(PINNED_PLANS).execute(&mut **conn).await.is_err() {
            return Err(Late(Some(result), None));
        }
        let Ok(asked) = self.cancel_requested(conn, &result).await else {
            return Err(Late(Some(result), None));
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
            Err(error) if committing => Err(Late(Some(broken(&error, true)), None)),
            Err(_) => Err(Late(None, Some(outcome))),
        }
    }

    /// Records a success, passes the turn on and commits, in one round trip.
    async fn succeed_at_once(
        &self,
        conn: &mut SlotConnection,
        result: &str,
    ) -> Result<End, sqlx::Error> {
        let keep = self.queue.keep.succeeded;
        let then = conn.then();
        let settled =
            self.shared.store.settle_at_once(conn, &self.claim, result, keep, then).await?;
        conn.committed(then).await?;
        let end = self.ended(&Outcome::Succeeded { result: String::new() });
        // A handler that used the transaction may have enqueued in it.
        Ok(if settled.drained && then == Then::Commit { End::Drained } else { end })
    }

    /// Records a success, and keeps the claim for the next job of the turn, unless somebody paused the queue or the group.
    async fn stay_in_hold(
        &self,
        conn: &mut SlotConnection,
        result: String,
    ) -> Result<End, sqlx::Error> {
        let Shared { store, .. } = &*self.shared;
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        if self.lease.is_none() {
            return self.stay_at_once(conn, &result).await;
        }
        let mut done = self.done.clone();
        done.push(Done { job: self.claim.job, result });
        let paused = store.record_done(conn, queue, group, &done, self.queue.keep).await?;
        if paused {
            store.end_turn(conn, queue, &self.claim).await?;
        } else if let Some(lease) = self.lease {
            store.trust(conn, &self.claim, lease).await?;
        }
        conn.commit().await?;
        tracing::debug!(queue, group, job = self.claim.job, "job succeeded");
        Ok(if paused { End::Finished } else { End::Stays })
    }

    /// The same in one round trip, with the hold of the next job.
    async fn stay_at_once(
        &self,
        conn: &mut SlotConnection,
        result: &str,
    ) -> Result<End, sqlx::Error> {
        let (claim, keep) = (&self.claim, self.queue.keep.succeeded);
        let then = if conn.then() == Then::Commit { Then::Hold } else { Then::Nothing };
        let asked_at = Instant::now();
        let settled = self.shared.store.settle_at_once(conn, claim, result, keep, then).await?;
        conn.committed(then).await?;
        if then == Then::Hold {
            match (settled.held, claim.behind.first()) {
                (Some(pid), Some(&job)) => conn.ahead = Some(HeldAhead { job, pid, asked_at }),
                _ => conn.rollback().await?,
            }
        }
        let (queue, group) = (&*self.queue.name, claim.group.as_deref());
        tracing::debug!(queue, group, job = claim.job, "job succeeded");
        Ok(if settled.ended { End::Finished } else { End::Stays })
    }

    /// Records what succeeded before in the same turn.
    async fn record_done(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        if self.done.is_empty() {
            return Ok(false);
        }
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        self.shared.store.record_done(conn, queue, group, &self.done, self.queue.keep).await
    }

    /// Records an outcome on another connection: the hold's own is gone, or in an unknown state.
    pub(crate) async fn settle_by_token(&self, session: SessionId, mut late: Late) -> End {
        let mut run = self.clone();
        let deadline = Instant::now() + RECORD_LIMIT;
        let mut pause = RETRY_SKIPPED;
        let mut source = None;
        while Instant::now() < deadline {
            // Where only the answer was lost, the next try finds that the token is gone.
            match timeout(ANSWER_LIMIT, run.try_by_token(session, &mut late)).await {
                Ok(Ok(Some(end))) => return end,
                Ok(Ok(None)) => {}
                failed => {
                    pause = (pause * 2).min(Duration::from_millis(500));
                    source = Some(match failed {
                        Ok(Err(error)) => {
                            if is_refusal(&error) {
                                // Its next try records what comes of that.
                                run.refused(&mut late, &error);
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
        self.shared.report(&BackgroundError::Settle { queue, job, source: source.map(quiet) });
        End::Lost
    }

    /// The database refused to record a success. If that is perhaps one of several, the first is recorded alone, with what
    /// comes of it, and the others go back: they run again, behind it.
    pub(crate) fn refused(&mut self, late: &mut Late, error: &sqlx::Error) {
        if self.done.is_empty() {
            late.refused(error);
            return;
        }
        let first = self.done.remove(0);
        let later = self.done.drain(..).map(|done| done.job).chain([self.claim.job]);
        self.claim.behind = later.chain(self.claim.behind.drain(..)).collect();
        self.claim.job = first.job;
        *late = Late(Some(RunResult::Succeeded(first.result)), None);
    }

    /// One try; none: somebody has a row for a moment, perhaps our own old session.
    async fn try_by_token(
        &self,
        session: SessionId,
        late: &mut Late,
    ) -> Result<Option<End>, sqlx::Error> {
        let mut conn = WorkConnection::from(self.shared.side.acquire().await?);
        let store = &self.shared.store;
        together(&mut conn, async |conn| store.terminate(conn, session).await).await?;
        begin_short(&mut conn).await?;
        match self.try_late(&mut conn, late).await? {
            Tried::Recorded => {
                PgTransactionManager::commit(&mut conn).await?;
                conn.done();
                Ok(Some(self.ended_late(late)))
            }
            Tried::Passed => {
                PgTransactionManager::commit(&mut conn).await?;
                conn.done();
                Ok(Some(End::Finished))
            }
            Tried::Skipped => {
                PgTransactionManager::rollback(&mut conn).await?;
                conn.done();
                Ok(None)
            }
            Tried::Stays { .. } | Tried::Lost => Ok(Some(self.lost())),
        }
    }

    /// Locks the job by its token and writes its outcome, in the short transaction that is open on `conn`.
    pub(crate) async fn try_late(
        &self,
        conn: &mut PgConnection,
        late: &mut Late,
    ) -> Result<Tried, sqlx::Error> {
        let Shared { store, .. } = &*self.shared;
        let held = match store.hold(conn, &self.queue.name, &self.claim).await? {
            HoldAnswer::Held(held) => Some(held),
            // Where a turn goes on, the token outlives what an earlier try committed without an answer.
            HoldAnswer::Skipped if store.outlived(conn, &self.claim).await? => None,
            HoldAnswer::Skipped => return Ok(Tried::Skipped),
            HoldAnswer::Lost => return Ok(Tried::Lost),
        };
        let paused = self.record_done(conn).await?;
        if late.is_empty() && !(paused && self.idle) {
            return Ok(Tried::Stays { paused });
        }
        let Some(held) = held.filter(|_| !late.is_empty()) else {
            store.end_turn(conn, &self.queue.name, &self.claim).await?;
            return Ok(Tried::Passed);
        };
        if let Some(run) = &late.0 {
            let asked = self.cancel_requested(conn, run).await?;
            late.1 = late.0.take().map(|result| self.decide(&held, result, asked));
        }
        let Some(outcome) = &mut late.1 else {
            return Ok(Tried::Lost);
        };
        self.apply_group_policy(conn, outcome).await?;
        self.record(conn, &held, outcome).await?;
        Ok(Tried::Recorded)
    }

    /// The claim was taken over before the outcome was recorded.
    pub(crate) fn lost(&self) -> End {
        let (queue, job) = (self.queue.name.to_string(), self.claim.job);
        self.shared.report(&BackgroundError::Settle { queue, job, source: None });
        End::Lost
    }

    /// What was recorded late has been committed.
    pub(crate) fn ended_late(&self, late: &Late) -> End {
        match late {
            Late(Some(RunResult::Succeeded(_)), _) => {
                self.ended(&Outcome::Succeeded { result: String::new() })
            }
            Late(_, outcome) => outcome.as_ref().map_or(End::Lost, |outcome| self.ended(outcome)),
        }
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
            let policy = self.shared.store.group_policy(conn, &self.queue.name, group).await?;
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
        let store = &self.shared.store;
        store
            .settle(conn, &self.queue.name, &self.claim, outcome, self.queue.keep, held.followed)
            .await
    }

    pub(crate) fn ended(&self, outcome: &Outcome) -> End {
        let job = self.claim.job;
        let (queue, group) = (&*self.queue.name, self.claim.group.as_deref());
        match outcome {
            Outcome::Succeeded { .. } => tracing::debug!(queue, group, job, "job succeeded"),
            Outcome::Cancelled => tracing::info!(queue, group, job, "job cancelled"),
            Outcome::Ignored => tracing::info!(queue, group, job, "job ignored: it is too old"),
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
            Outcome::Failed { failure, then } => {
                let (kind, attempt) = (failure.kind, failure.attempt);
                let error = &failure.message;
                tracing::error!(queue, group, job, attempt, ?kind, error, ?then, "job failed");
            }
        }
        End::Finished
    }
}

//! Settles in the transaction that holds the job: records the outcome and passes the turn on.

use sqlx::PgConnection;
use tokio::time::Instant;

use crate::attempt::connection::SlotConnection;
use crate::attempt::failure::broken;
use crate::attempt::turn::{ClaimedTurn, TurnEnd, Unrecorded};
use crate::job::outcome::{self, Attempt, Outcome, RunResult};
use crate::job::policy::AtFailure;
use crate::job::queue_options::OutOfAttempts;
use crate::job::retry::RetryPolicy;
use crate::liveness::context::Context;
use crate::store::{AfterSettle, AttemptNumber, PINNED_PLANS, UnrecordedSuccess};

impl ClaimedTurn {
    /// Settles in the transaction that holds the job. An error returns the part that must be
    /// recorded on another connection.
    pub(crate) async fn settle_in_hold(
        &self,
        conn: &mut SlotConnection,
        unrecorded: Unrecorded,
    ) -> Result<TurnEnd, Unrecorded> {
        if let Unrecorded::Outcome(outcome @ Outcome::Succeeded { result }) = &unrecorded {
            if self.stays(&unrecorded) {
                let stayed = self.stay_in_hold(conn, outcome, result).await;
                return stayed.map_err(|error| Unrecorded::Result(broken(&error, true)));
            }
            if self.earlier.is_empty() {
                let succeeded = self.succeed_in_one_trip(conn, outcome, result).await;
                return succeeded.map_err(|error| Unrecorded::Result(broken(&error, true)));
            }
        }
        // All other statements have their plans pinned.
        if let Err(error) = sqlx::raw_sql(PINNED_PLANS).execute(&mut **conn).await {
            return Err(unrecorded.uncommitted(&error));
        }
        let outcome = match unrecorded {
            Unrecorded::Outcome(outcome) => outcome,
            Unrecorded::Result(result) => {
                match self.context.store.at_failure(conn, self.claim.job).await {
                    Ok(stored) => self.decide(self.attempted(), result, &stored),
                    Err(error) => return Err(Unrecorded::Result(result).uncommitted(&error)),
                }
            }
            Unrecorded::EarlierOnly => return Err(Unrecorded::EarlierOnly),
        };
        let recorded = async {
            self.record_earlier(conn).await?;
            self.record(conn, &outcome).await?;
            conn.commit().await
        };
        match recorded.await {
            Ok(()) => Ok(self.tell_end(&outcome)),
            // The job's row is unchanged.
            Err(error) => Err(Unrecorded::Outcome(outcome).uncommitted(&error)),
        }
    }

    /// Records a lone success, passes the turn on and commits, in one round trip.
    async fn succeed_in_one_trip(
        &self,
        conn: &mut SlotConnection,
        outcome: &Outcome,
        result: &str,
    ) -> Result<TurnEnd, sqlx::Error> {
        let keep = self.queue.keep.succeeded;
        let then = self.then_next_turn(conn, conn.after_settle());
        let asked_at = Instant::now();
        let settled =
            self.context.store.quick_settle(conn, &self.claim, result, keep, false, then).await?;
        conn.finish_commit(then).await?;
        if let AfterSettle::Hold { job, .. } = then {
            conn.set_preheld(job, settled.held, asked_at).await;
        }
        let end = self.tell_end(outcome);
        // A handler that used the transaction may have enqueued in it.
        Ok(if settled.drained && then != AfterSettle::Nothing { TurnEnd::Drained } else { end })
    }

    /// Lets the settle's message hold the slot's next turn as well, if it may commit and one waits:
    /// one round trip less for each job.
    fn then_next_turn(&self, conn: &SlotConnection, then: AfterSettle) -> AfterSettle {
        let Some(next) = self
            .next
            .as_ref()
            .filter(|_| then == AfterSettle::Commit && !self.context.stop.is_cancelled())
        else {
            return then;
        };
        match next.take(conn.has_claimed) {
            Some((job, token)) => AfterSettle::Hold { job, token },
            None => then,
        }
    }

    /// Records a success and keeps the claim for the next job of the turn, unless the queue or the
    /// group is paused.
    async fn stay_in_hold(
        &self,
        conn: &mut SlotConnection,
        outcome: &Outcome,
        result: &str,
    ) -> Result<TurnEnd, sqlx::Error> {
        let Context { store, .. } = &*self.context;
        let queue = &*self.queue.name;
        let ends = if let Some(lease) = self.lease {
            let mut done = self.earlier.clone();
            done.push(UnrecordedSuccess {
                job: self.claim.job,
                result: result.to_owned(),
                began: self.claim.began,
                ended: None,
            });
            let paused =
                store.record_earlier(conn, queue, &self.claim, &done, self.queue.keep).await?;
            if paused {
                store.end_turn(conn, &self.claim).await?;
            } else {
                store.clear_suspicion(conn, &self.claim, lease).await?;
            }
            conn.commit().await?;
            paused
        } else {
            self.stay_in_one_trip(conn, result).await?
        };
        let end = self.tell_end(outcome);
        Ok(if ends { end } else { TurnEnd::Stays })
    }

    /// Records a success and holds the next job of the turn in one round trip. Returns whether the
    /// turn ended because of a pause.
    async fn stay_in_one_trip(
        &self,
        conn: &mut SlotConnection,
        result: &str,
    ) -> Result<bool, sqlx::Error> {
        let (claim, keep) = (&self.claim, self.queue.keep.succeeded);
        let then = match (conn.after_settle(), claim.followers.first()) {
            (AfterSettle::Commit, Some(&job)) => AfterSettle::Hold { job, token: claim.token },
            (then, _) => then,
        };
        let asked_at = Instant::now();
        let settled =
            self.context.store.quick_settle(conn, claim, result, keep, true, then).await?;
        conn.finish_commit(then).await?;
        if let AfterSettle::Hold { job, .. } = then {
            conn.set_preheld(job, settled.held, asked_at).await;
        }
        Ok(settled.ended)
    }

    /// Records the earlier successes of the turn. Returns whether the queue or the group is paused.
    pub(crate) async fn record_earlier(
        &self,
        conn: &mut PgConnection,
    ) -> Result<bool, sqlx::Error> {
        if self.earlier.is_empty() {
            return Ok(false);
        }
        let (queue, claim) = (&*self.queue.name, &self.claim);
        self.context.store.record_earlier(conn, queue, claim, &self.earlier, self.queue.keep).await
    }

    /// Returns the outcome that follows from a result. Stored settings go before the options.
    pub(crate) fn decide(
        &self,
        (number, kind): (AttemptNumber, Option<&str>),
        result: RunResult,
        stored: &AtFailure,
    ) -> Outcome {
        let options = &self.queue.options;
        let of_kind = self.queue.handler.kinds().and_then(|kinds| kinds.retry(kind));
        // A claim counts by the job's own number of attempts, or by the queue's.
        let max_attempts = options.retry.max_attempts;
        let of_kind = of_kind.map(|kind| RetryPolicy { max_attempts, ..kind });
        let retry = stored.policy.retry(of_kind.as_ref().unwrap_or(&options.retry));
        let attempt = Attempt {
            number: number.of_all,
            counted: number.counted,
            max: retry.max_attempts,
            cancel_requested: stored.cancel_requested,
            retry_undecodable: options.retry_undecodable,
        };
        // A job without a group has no group to halt.
        let then = match self.claim.group {
            Some(_) => stored.policy.then(options.out_of_attempts),
            None => OutOfAttempts::Continue,
        };
        outcome::decide(result, attempt, &retry, then, fastrand::f64())
    }

    /// Writes an outcome and passes the turn on.
    pub(crate) async fn record(
        &self,
        conn: &mut PgConnection,
        outcome: &Outcome,
    ) -> Result<(), sqlx::Error> {
        let store = &self.context.store;
        if !self.begun_behind.is_empty() {
            // They run again, and no number of an attempt comes twice (P9).
            store.release_attempts(conn, &self.begun_behind).await?;
        }
        store.settle(conn, &self.claim, outcome, self.queue.keep).await
    }
}

//! Settles by token on another connection, if the hold's own session is gone or in an unknown
//! state.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::error::DatabaseError;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::failure::broken;
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::lost::report_taken_over;
use crate::attempt::turn::{ClaimedTurn, TurnEnd, Unrecorded};
use crate::job::outcome::{Outcome, RunResult};
use crate::liveness::context::Context;
use crate::store::{HoldAnswer, SessionId, WorkConnection, begin_short, in_tx, is_read_only};

/// Bounds a hold, or one try to record. A server that takes longer is lost.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Bounds the tries to record an outcome by token. Then the job is left to a take-over.
pub(crate) const RECORD_LIMIT: Duration = Duration::from_secs(15);

impl Unrecorded {
    /// Turns a success that the database refused to record into a failure, and the words of a
    /// failure that it refused into ASCII.
    fn refuse(&mut self, error: &sqlx::Error) {
        match self {
            Self::Outcome(Outcome::Succeeded { .. }) => *self = Self::Result(broken(error, true)),
            Self::Outcome(Outcome::Retried { failure, .. } | Outcome::Failed { failure, .. })
                if is_of_text(error) =>
            {
                failure.make_plain();
            }
            _ => {}
        }
    }
}

/// Returns whether the database will refuse the same record again. It may accept it later after an
/// error of classes 08, 40, 53, 55, 57 and 58: a timeout, a lack of resources, or an ended session.
/// So it may if the server is read-only.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    let transient =
        |code: &str| ["08", "40", "53", "55", "57", "58"].contains(&&code[..2.min(code.len())]);
    if is_read_only(error) {
        return false;
    }
    let error = error.as_database_error();
    error.is_some_and(|error| !error.code().is_some_and(|code| transient(&code)))
}

/// Returns whether the database refuses a value: classes 22, data, and 54, limits. Its encoding may
/// lack a character of a text.
fn is_of_text(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| ["22", "54"].iter().any(|class| code.starts_with(class)))
}

/// Returns the reason of an outcome that was not recorded though the server answered.
pub(crate) fn row_is_locked() -> sqlx::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "its row is locked").into()
}

/// The result of one try to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleAttempt {
    Recorded,
    /// Successes were recorded, and the turn goes on, unless the queue or the group is paused.
    Stays {
        paused: bool,
    },
    /// The turn was passed on: the queue or the group is paused, or everything was recorded before.
    Passed,
    /// A row is locked for a moment, perhaps by our own old session.
    Skipped,
    /// The claim was taken over.
    Lost,
}

impl ClaimedTurn {
    /// Records an outcome on another connection, by token.
    pub(crate) async fn settle_by_token(
        &self,
        session: SessionId,
        mut unrecorded: Unrecorded,
    ) -> TurnEnd {
        let mut run = self.clone();
        let deadline = Instant::now() + RECORD_LIMIT;
        let mut pause = RETRY_SKIPPED;
        let mut error = row_is_locked();
        // An orphan check must not suspect it meanwhile.
        let _known = self.lease.map(|lease| self.extend_lease(lease, Instant::now()));
        while Instant::now() < deadline {
            // If only the answer was lost, the next try finds that the token is gone.
            match timeout(ANSWER_LIMIT, run.try_by_token(session, &mut unrecorded)).await {
                Ok(Ok(Some(end))) => return end,
                Ok(Ok(None)) => {}
                failed => {
                    pause = (pause * 2).min(Duration::from_millis(500));
                    error = match failed {
                        Ok(Err(error)) => {
                            if is_refusal(&error) {
                                // The next try records the changed outcome.
                                run.refuse(&mut unrecorded, &error);
                            }
                            error
                        }
                        _ => io::Error::from(io::ErrorKind::TimedOut).into(),
                    };
                }
            }
            sleep(pause).await;
        }
        self.leave_claim(error)
    }

    /// Handles a success that the database refused. If it is one of several, the first is recorded
    /// alone, and the later jobs become followers that run again.
    pub(crate) fn refuse(&mut self, unrecorded: &mut Unrecorded, error: &sqlx::Error) {
        if self.earlier.is_empty() {
            unrecorded.refuse(error);
            return;
        }
        let first = self.earlier.remove(0);
        self.begun_behind =
            self.earlier.drain(..).map(|done| done.job).chain([self.claim.job]).collect();
        self.claim.followers.splice(..0, self.begun_behind.iter().copied());
        self.claim.job = first.job;
        self.claim.began = first.began;
        self.facts = self.earlier_facts.first().cloned();
        *unrecorded = Unrecorded::Outcome(Outcome::Succeeded { result: first.result });
    }

    /// Tries once. `None` if a row is locked for a moment, perhaps by our own old session.
    async fn try_by_token(
        &self,
        session: SessionId,
        unrecorded: &mut Unrecorded,
    ) -> Result<Option<TurnEnd>, sqlx::Error> {
        let mut conn =
            WorkConnection::from(self.context.side.acquire_at(self.origin.as_ref()).await?);
        let store = &self.context.store;
        in_tx(&mut conn, async |conn| store.terminate(conn, session).await).await?;
        let mut tx = begin_short(&mut conn).await?;
        match self.try_unrecorded(&mut tx, unrecorded).await? {
            SettleAttempt::Recorded => {
                tx.commit().await?;
                conn.done();
                Ok(Some(self.tell_late_end(unrecorded)))
            }
            SettleAttempt::Passed => {
                tx.commit().await?;
                conn.done();
                Ok(Some(TurnEnd::Finished))
            }
            SettleAttempt::Skipped => {
                tx.rollback().await?;
                conn.done();
                Ok(None)
            }
            SettleAttempt::Stays { .. } | SettleAttempt::Lost => Ok(Some(self.report_claim_lost())),
        }
    }

    /// Locks the job by its token and writes its outcome, in the short transaction that is open on
    /// `conn`.
    pub(crate) async fn try_unrecorded(
        &self,
        conn: &mut PgConnection,
        unrecorded: &mut Unrecorded,
    ) -> Result<SettleAttempt, sqlx::Error> {
        let Context { store, .. } = &*self.context;
        let holds = match store.hold(conn, &self.claim).await? {
            HoldAnswer::Held(_) => true,
            // If the turn goes on, its token is valid after a commit whose answer was lost.
            HoldAnswer::Skipped if store.already_recorded(conn, &self.claim).await? => false,
            HoldAnswer::Skipped => return Ok(SettleAttempt::Skipped),
            HoldAnswer::Lost if self.has_succeeded(conn).await? => {
                // Only the answer to its commit was lost.
                *unrecorded = Unrecorded::Outcome(Outcome::Succeeded { result: String::new() });
                return Ok(SettleAttempt::Recorded);
            }
            HoldAnswer::Lost => return Ok(SettleAttempt::Lost),
        };
        let paused = self.record_earlier(conn).await?;
        let earlier_only = matches!(unrecorded, Unrecorded::EarlierOnly);
        if earlier_only && !(paused && self.idle) {
            return Ok(SettleAttempt::Stays { paused });
        }
        if earlier_only || !holds {
            store.end_turn(conn, &self.claim).await?;
            return Ok(SettleAttempt::Passed);
        }
        if let Unrecorded::Result(result) = unrecorded {
            let stored = store.at_failure(conn, self.claim.job).await?;
            let result = std::mem::replace(result, RunResult::Released);
            *unrecorded = Unrecorded::Outcome(self.decide(self.attempted(), result, &stored));
        }
        let Unrecorded::Outcome(outcome) = unrecorded else {
            return Ok(SettleAttempt::Lost);
        };
        self.record(conn, outcome).await?;
        Ok(SettleAttempt::Recorded)
    }

    /// Returns whether the current attempt was recorded as a success.
    async fn has_succeeded(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let Some(facts) = &self.facts else { return Ok(false) };
        self.context.store.has_succeeded(conn, self.claim.job, facts.number.of_all).await
    }

    /// Tells the outcome of a late record that is committed. Returns how the turn ended.
    pub(crate) fn tell_late_end(&self, unrecorded: &Unrecorded) -> TurnEnd {
        match unrecorded {
            Unrecorded::Outcome(outcome) => self.tell_end(outcome),
            Unrecorded::Result(_) | Unrecorded::EarlierOnly => TurnEnd::Lost,
        }
    }

    /// Reports that the claim was taken over before its outcome was recorded.
    pub(crate) fn report_claim_lost(&self) -> TurnEnd {
        report_taken_over(&self.context, &self.queue.name, self.claim.job);
        TurnEnd::Lost
    }
}

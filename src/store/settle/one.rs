//! Settle: record the outcome and pass the turn, in a transaction that holds the rows by their
//! token (P4, P10).

use serde::Serialize;
use sqlx::types::Json;
use sqlx::{PgConnection, Row};

use crate::job::job::{Failure, FailureKind};
use crate::job::outcome::Outcome;
use crate::job::policy::{AtFailure, StoredOutOfAttempts};
use crate::store::claim::Claim;
use crate::store::settle::keep::KeepFinished;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    FAILURE_POLICY = |names| names.sql("select {failure_policy}($1)");

    SETTLE = |names| names.sql("select {settle_outcome}($1, $2, $3, $4, $5)");

    RELEASE_ATTEMPTS = |names| names.sql(
        "select {end_attempt}(job, 'released', 'released', null) from unnest($1) job",
    );

    PASS_TURN = |names| names.sql("select {pass_turns}(array[$1], array[null::bigint])");
}

/// An outcome as `settle_outcome` takes it, but for the result of a success.
#[derive(Debug, Serialize)]
struct Recorded<'a> {
    how: &'static str,
    kind: Option<FailureKind>,
    message: Option<&'a str>,
    chain: &'a [String],
    /// In seconds.
    delay: f64,
    then: Option<StoredOutOfAttempts>,
    /// How many seconds ago the handler began.
    began: Option<f64>,
}

impl<'a> Recorded<'a> {
    fn new(outcome: &'a Outcome, began: Option<f64>) -> Self {
        let (message, chain, delay, then) = (None, &[][..], 0.0, None);
        let plain = |how, kind| Self { how, kind, message, chain, delay, then, began };
        let failed = |how, failure: &'a Failure| Self {
            message: Some(&failure.message),
            chain: &failure.chain,
            ..plain(how, Some(failure.kind))
        };
        match outcome {
            Outcome::Succeeded { .. } => plain("succeeded", None),
            Outcome::Retried { failure, delay } => {
                Self { delay: delay.as_secs_f64(), ..failed("retried", failure) }
            }
            Outcome::Snoozed { delay, .. } => {
                Self { delay: delay.as_secs_f64(), ..plain("snoozed", None) }
            }
            Outcome::Failed { failure, then } => {
                Self { then: Some(Some(*then).into()), ..failed("failed", failure) }
            }
            Outcome::Cancelled => plain("cancelled", Some(FailureKind::Cancelled)),
            Outcome::Ignored => plain("cancelled", Some(FailureKind::Ignored)),
            Outcome::Released => plain("released", Some(FailureKind::Released)),
        }
    }
}

impl Store {
    /// Returns what is stored about failures of the job, and whether a cancel of it is requested.
    pub(crate) async fn at_failure(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<AtFailure, sqlx::Error> {
        let row = self.query(&FAILURE_POLICY).bind(job).fetch_one(conn).await?;
        let stored: Option<Json<AtFailure>> = row.try_get(0)?;
        Ok(stored.map(|stored| stored.0).unwrap_or_default())
    }

    /// Writes the outcome to the job and passes the turn, whose followers were not begun. The
    /// transaction must hold both rows.
    pub(crate) async fn settle(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        outcome: &Outcome,
        keep: KeepFinished,
    ) -> Result<(), sqlx::Error> {
        let (result, keep) = match outcome {
            Outcome::Succeeded { result } => (Some(result), keep.succeeded),
            Outcome::Failed { .. } => (None, keep.failed),
            Outcome::Cancelled | Outcome::Ignored => (None, keep.cancelled),
            Outcome::Retried { .. } | Outcome::Snoozed { .. } | Outcome::Released => (None, true),
        };
        let settle = self.query(&SETTLE).bind(claim.job).bind(claim.token);
        let settle = settle.bind(Json(Recorded::new(outcome, claim.age()))).bind(result).bind(keep);
        if settle.fetch_one(conn).await?.try_get(0)? {
            return Ok(());
        }
        // The row is locked and claimed: an operator rewrote it before it was locked.
        Err(sqlx::Error::RowNotFound)
    }

    /// Ends attempts of a turn's jobs without an outcome. Nothing is held against the jobs. The
    /// group's row is locked by the claim's token.
    pub(crate) async fn release_attempts(
        &self,
        conn: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<(), sqlx::Error> {
        self.query(&RELEASE_ATTEMPTS).bind(jobs).execute(conn).await.map(drop)
    }

    /// Passes the turn of a claim whose job was recorded. The group's row is locked by its token.
    pub(crate) async fn end_turn(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> Result<(), sqlx::Error> {
        if claim.group.is_none() {
            return Ok(());
        }
        self.query(&PASS_TURN).bind(claim.token).execute(conn).await.map(drop)
    }
}

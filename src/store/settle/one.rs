//! Settle: record the outcome and pass the turn, in a transaction that holds the rows by their
//! token (P4, P10).

use std::time::Duration;

use sqlx::types::Json;
use sqlx::{PgConnection, Row};

use crate::job::job::{Failure, FailureKind};
use crate::job::outcome::Outcome;
use crate::job::queue_options::OutOfAttempts;
use crate::store::claim::Claim;
use crate::store::fragments::{CLAIMED, FREE_GROUP};
use crate::store::settle::keep::KeepFinished;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    CANCEL_REQUESTED = |names| names.sql(
        "select 1 from {cancel_request} r where r.job_id = $1 limit 1",
    );

    SUCCEED = |names| names.sql("select from {succeed}(array[$1], array[$2], array[$3], $4, array[$5])");

    END = |names| names.sql("select 1 where {end_attempt}($1, $2, $3, $4, $5, $6, $7)");

    /// The outcome of a job that is not to be kept.
    DELETE = |names| names.sql_with(
        "delete from {job} j where j.id = $1 and {claimed} returning id",
        &[("claimed", CLAIMED)],
    );

    PASS_TURN = |names| names.sql("select {pass_turns}(array[$1], array[$2::bigint])");

    /// Frees the group and halts it.
    HALT = |names| names.sql_with(
        "update {queue_group} set
            {free},
            ready_at = 'infinity',
            halted_at = clock_timestamp(),
            halt_reason = $2,
            halt_job_id = $3,
            halt_until = clock_timestamp() + make_interval(secs => $4),
            halt_then = $5,
            park_to = $6
        where claim = $1",
        &[("free", FREE_GROUP)],
    );

    /// The failed job becomes the one that others are parked with.
    PARK = |names| names.sql(
        "update {job} set parked_with = id where id = $1 and status::text in ('failed')",
    );

    DEAD_LETTER = |names| names.sql("select {dead_letter}($1)");

    /// A dead letter that is not to be kept.
    DELETE_FAILED = |names| names.sql(
        "delete from {job} where id = $1 and status::text in ('failed')",
    );

    FORGET_REQUESTS = |names| names.sql(
        "with gone as materialized (
            select ctid from {cancel_request} r where r.job_id = $1 for update of r skip locked
        )
        delete from {cancel_request} where ctid in (select ctid from gone)",
    );
}

impl Store {
    /// Returns whether a cancel of the job is requested.
    pub(crate) async fn cancel_requested(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<bool, sqlx::Error> {
        let row = self.query(&CANCEL_REQUESTED).bind(job).fetch_optional(conn).await?;
        Ok(row.is_some())
    }

    /// Writes the outcome to the job and passes the turn, whose followers were not begun. The
    /// transaction must hold both rows.
    pub(crate) async fn settle(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        claim: &Claim,
        outcome: &Outcome,
        keep: KeepFinished,
        followed: bool,
    ) -> Result<(), sqlx::Error> {
        self.record(conn, claim, outcome, keep).await?;
        if let Outcome::Cancelled | Outcome::Ignored = outcome {
            self.query(&FORGET_REQUESTS).bind(claim.job).execute(&mut *conn).await?;
        }
        let Some(group) = &claim.group else {
            return Ok(());
        };
        if let Outcome::Failed { failure, then } = outcome
            && self.stop(conn, queue, group, claim, failure, *then).await?
        {
            return Ok(());
        }
        let ends = matches!(
            outcome,
            Outcome::Succeeded { .. }
                | Outcome::Failed { .. }
                | Outcome::Cancelled
                | Outcome::Ignored
        );
        // A group that has another job is not drained.
        let ended = (ends && !followed && claim.followers.is_empty()).then_some(claim.job);
        let pass = self.query(&PASS_TURN).bind(claim.token).bind(ended);
        pass.execute(conn).await.map(drop)
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
        let pass = self.query(&PASS_TURN).bind(claim.token).bind(None::<i64>);
        pass.execute(conn).await.map(drop)
    }

    /// Halts the group, or parks the jobs behind the failed one; returns whether the turn is not to
    /// be passed.
    ///
    /// Parking comes before the group's row is written: an adopter waits for a row that was
    /// written.
    async fn stop(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        claim: &Claim,
        failure: &Failure,
        then: OutOfAttempts,
    ) -> Result<bool, sqlx::Error> {
        let mut park_to = None;
        let mut ends = None;
        match then {
            OutOfAttempts::Continue => return Ok(false),
            OutOfAttempts::Halt => {}
            OutOfAttempts::HaltFor { deadline, then } => {
                ends = Some((deadline.as_secs_f64(), then.as_str()));
            }
            OutOfAttempts::Park => {
                self.query(&PARK).bind(claim.job).execute(&mut *conn).await?;
                park_to = self.park_batch(conn, queue, group, claim.job, None).await?.rest;
                if park_to.is_none() {
                    return Ok(false);
                }
            }
        }
        let halt = self.query(&HALT).bind(claim.token);
        let halt = halt.bind(&failure.message).bind(claim.job);
        let (seconds, word) = ends.unzip();
        halt.bind(seconds).bind(word).bind(park_to).execute(conn).await?;
        Ok(true)
    }

    async fn record(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        outcome: &Outcome,
        keep: KeepFinished,
    ) -> Result<(), sqlx::Error> {
        let job = claim.job;
        let end =
            |how: &'static str, kind: FailureKind, failure: Option<&Failure>, delay: Duration| {
                let chain = failure.map_or_else(Vec::new, |failure| failure.chain.clone());
                let message = failure.map(|failure| failure.message.clone());
                let end = self.query(&END).bind(job).bind(how).bind(word(kind)).bind(message);
                end.bind(delay.as_secs_f64()).bind(Json(chain)).bind(claim.age())
            };
        let query = match outcome {
            Outcome::Cancelled | Outcome::Ignored if !keep.cancelled => {
                self.query(&DELETE).bind(job)
            }
            Outcome::Succeeded { result } => {
                let succeed = self.query(&SUCCEED).bind(job).bind(claim.token);
                succeed.bind(result).bind(keep.succeeded).bind(claim.age())
            }
            Outcome::Failed { failure, .. } => {
                end("failed", failure.kind, Some(failure), Duration::ZERO)
            }
            Outcome::Retried { failure, delay } => {
                end("retried", failure.kind, Some(failure), *delay)
            }
            Outcome::Cancelled => end("cancelled", FailureKind::Cancelled, None, Duration::ZERO),
            Outcome::Ignored => end("cancelled", FailureKind::Ignored, None, Duration::ZERO),
            Outcome::Released => end("released", FailureKind::Released, None, Duration::ZERO),
        };
        if query.fetch_optional(&mut *conn).await?.is_none() {
            // The row is locked and claimed: an operator rewrote it before it was locked.
            return Err(sqlx::Error::RowNotFound);
        }
        match outcome {
            // A halted group needs the job that halted it, and parked jobs need the one that they
            // are parked with.
            Outcome::Failed { failure, then: OutOfAttempts::Continue } => {
                self.put_aside(conn, job, failure.kind, keep).await
            }
            _ => Ok(()),
        }
    }

    /// Moves a job that has failed to its queue's dead-letter queue, unless it expired. One that
    /// stays is deleted if dead letters are not kept.
    async fn put_aside(
        &self,
        conn: &mut PgConnection,
        job: i64,
        kind: FailureKind,
        keep: KeepFinished,
    ) -> Result<(), sqlx::Error> {
        let moved = kind != FailureKind::Expired
            && self.query(&DEAD_LETTER).bind(job).fetch_one(&mut *conn).await?.try_get(0)?;
        if !moved && !keep.failed {
            self.query(&DELETE_FAILED).bind(job).execute(conn).await?;
        }
        Ok(())
    }
}

/// The word that jsonb has for a kind: serde's.
fn word(kind: FailureKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::from("error"),
    }
}

//! Settles finished jobs under leases, many in one transaction: the jobs that finished while the
//! last batch was written. So no job waits under a low load, and commits are few under a high load.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;
use uuid::Uuid;

use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::settle_late::{
    ANSWER_LIMIT, RECORD_LIMIT, SettleAttempt, is_refusal, row_is_locked,
};
use crate::attempt::turn::{ClaimedTurn, Finished, Settled, TurnEnd, Unrecorded};
use crate::job::outcome::Outcome;
use crate::liveness::context::Context;
use crate::store::WorkConnection;
use crate::store::{Succeeded, begin_short};

/// Bounds the jobs of one transaction, approximately: a statement has 2 s, the transaction 5 s.
const MAX_JOBS: usize = 500;
/// The weight of a job that needs statements of its own.
const WEIGHT_APART: usize = 5;
const MAX_BYTES: usize = 4 << 20;

impl Finished {
    /// Returns the success if the claim ends with it and all its jobs have succeeded; else `None`.
    fn success(&self) -> Option<Succeeded<'_>> {
        let ClaimedTurn { claim, earlier, last, begun_behind, .. } = &self.run;
        let Unrecorded::Outcome(Outcome::Succeeded { result }) = &self.unrecorded else {
            return None;
        };
        let last = *last || claim.followers.is_empty();
        (last && begun_behind.is_empty()).then_some(Succeeded { claim, earlier, result })
    }

    fn weight(&self) -> usize {
        let apart = if self.is_success() { 1 } else { WEIGHT_APART };
        self.run.earlier.len() + apart
    }

    fn bytes(&self) -> usize {
        let results = self.run.earlier.iter().map(|done| done.result.len());
        results.sum::<usize>() + self.success().map_or(0, |success| success.result.len())
    }

    fn answer(self, settled: Settled) {
        // The receiver is gone if its runtime ends, or if its turn recorded the success with a
        // later one.
        let _ = self.answer.send(settled);
    }

    fn is_earlier_only(&self) -> bool {
        matches!(self.unrecorded, Unrecorded::EarlierOnly)
    }

    fn is_success(&self) -> bool {
        self.success().is_some()
    }
}

/// Settles finished jobs until all senders are gone. If it panics, what it had is left to a
/// take-over: each turn learns that as its [`Finished`] is dropped.
pub(crate) async fn run(inbox: &mut mpsc::Receiver<Finished>, context: &Context) {
    let mut waiting: Vec<Finished> = Vec::new();
    let mut pause = RETRY_SKIPPED;
    loop {
        if waiting.is_empty() {
            match inbox.recv().await {
                Some(finished) => waiting.push(finished),
                None => return,
            }
        }
        let mut jobs: usize = waiting.iter().map(Finished::weight).sum();
        let mut bytes: usize = waiting.iter().map(Finished::bytes).sum();
        while jobs < MAX_JOBS
            && bytes < MAX_BYTES
            && let Ok(finished) = inbox.try_recv()
        {
            jobs += finished.weight();
            bytes += finished.bytes();
            waiting.push(finished);
        }
        let before = waiting.len();
        if settle(context, &mut waiting).await.is_err() {
            // A job that the database refuses must not delay the others.
            settle_each(context, &mut waiting).await;
        }
        abandon_lost(&mut waiting);
        if waiting.len() == before {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        } else {
            pause = RETRY_SKIPPED;
        }
    }
}

/// Settles all waiting jobs in one transaction. A job with a locked row, and every job after an
/// error, waits on.
async fn settle(context: &Context, waiting: &mut Vec<Finished>) -> Result<(), sqlx::Error> {
    let span = tracing::debug_span!(target: "seriatim::job", "settle", jobs = waiting.len());
    let written = write(context, waiting).instrument(span);
    let tried = match timeout(ANSWER_LIMIT, written).await {
        Ok(tried) => tried?,
        Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    };
    let mut rest = Vec::new();
    for (mut finished, tried) in waiting.drain(..).zip(tried) {
        let end = match tried {
            SettleAttempt::Recorded => {
                Settled::Ended(finished.run.tell_late_end(&finished.unrecorded))
            }
            SettleAttempt::Stays { paused } => Settled::Stays { paused },
            SettleAttempt::Passed => Settled::Ended(TurnEnd::Finished),
            // The turn itself reports it.
            SettleAttempt::Lost if finished.is_earlier_only() => Settled::Ended(TurnEnd::Lost),
            SettleAttempt::Lost => Settled::Ended(finished.run.report_claim_lost()),
            // The turn tries again: its handler's transaction may lock the rows for long, and many
            // such jobs here would keep others out.
            SettleAttempt::Skipped if finished.is_earlier_only() => Settled::Skipped,
            SettleAttempt::Skipped => {
                finished.failed = None;
                rest.push(finished);
                continue;
            }
        };
        finished.answer(end);
    }
    *waiting = rest;
    Ok(())
}

async fn write(
    context: &Context,
    waiting: &mut [Finished],
) -> Result<Vec<SettleAttempt>, sqlx::Error> {
    let mut conn = WorkConnection::from(context.side.acquire().await?);
    let mut tx = begin_short(&mut conn).await?;
    let settled = settle_successes(context, &mut tx, waiting).await?;
    let mut tried = Vec::with_capacity(waiting.len());
    for finished in waiting {
        tried.push(if settled.contains(&finished.run.claim.token) && finished.is_success() {
            SettleAttempt::Recorded
        } else {
            finished.run.try_unrecorded(&mut tx, &mut finished.unrecorded).await?
        });
    }
    tx.commit().await?;
    conn.done();
    Ok(tried)
}

/// Settles pure successes, in a statement for each kind. A job that the statement leaves is stale
/// or has a locked row, and is settled by itself.
async fn settle_successes(
    context: &Context,
    conn: &mut PgConnection,
    waiting: &[Finished],
) -> Result<HashSet<Uuid>, sqlx::Error> {
    let mut settled = HashSet::new();
    for (keep, grouped) in [(true, true), (true, false), (false, true), (false, false)] {
        let of_kind = |finished: &&Finished| {
            let run = &finished.run;
            run.queue.keep.succeeded == keep && run.claim.group.is_some() == grouped
        };
        let successes: Vec<Succeeded<'_>> =
            waiting.iter().filter(of_kind).filter_map(Finished::success).collect();
        if !successes.is_empty() {
            settled.extend(context.store.settle_many(conn, &successes, keep).await?);
        }
    }
    Ok(settled)
}

async fn settle_each(context: &Context, waiting: &mut Vec<Finished>) {
    let mut rest = Vec::new();
    for finished in waiting.drain(..) {
        let mut one = vec![finished];
        if let Err(error) = settle(context, &mut one).await
            && let Some(mut finished) = one.pop()
        {
            if !is_refusal(&error) {
                finished.failed = Some(error);
                rest.push(finished);
            } else if finished.is_earlier_only() {
                finished.answer(Settled::Refused);
            } else {
                // The next try records the changed outcome.
                let Finished { run, unrecorded, .. } = &mut finished;
                run.refuse(unrecorded, &error);
                finished.failed = Some(error);
                rest.push(finished);
            }
        }
        rest.append(&mut one);
    }
    *waiting = rest;
}

/// Leaves jobs to a take-over whose hold is lost, and that could not be recorded within
/// [`RECORD_LIMIT`], or twice as long while their rows are locked. A job whose lease stands is
/// tried on.
fn abandon_lost(waiting: &mut Vec<Finished>) {
    let now = Instant::now();
    let mut rest = Vec::new();
    for mut finished in waiting.drain(..) {
        let limit = if finished.failed.is_some() { RECORD_LIMIT } else { RECORD_LIMIT * 2 };
        if !finished.signals.lost.is_cancelled() || now < finished.since + limit {
            rest.push(finished);
            continue;
        }
        let error = finished.failed.take().unwrap_or_else(row_is_locked);
        let end = finished.run.leave_claim(error);
        finished.answer(Settled::Ended(end));
    }
    *waiting = rest;
}

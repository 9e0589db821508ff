//! The stress's workers: claim, hold, handle, settle, and everything that goes wrong on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::postgres::PgTransactionManager;
use sqlx::{AssertSqlSafe, PgConnection};
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep};

use crate::JobError;
use crate::interleavings::support::producers::{enqueue_some, pause};
use crate::interleavings::support::scene::{KEEP, Q};
use crate::interleavings::support::stress::Stress;
use crate::job::group_plan::Disposition;
use crate::job::job::FailureKind;
use crate::job::outcome::{self, Attempt, Outcome, RunResult};
use crate::job::queue_options::OutOfAttempts;
use crate::store::{
    AfterSettle, ChainAnswer, Claim, ClaimOptions, HeldJob, HoldAnswer, Succeeded,
    UnrecordedSuccess, begin_hold, begin_short, gave_up_waiting, in_short_tx,
};
use crate::worker::claim_steps::ClaimCursor;

/// Claims for up to three slots at a time until the queue is drained.
pub(in crate::interleavings) async fn work(stress: Arc<Stress>, mut rng: fastrand::Rng) {
    let mut conn = stress.session("claimer").await;
    let mut slots: Vec<PgConnection> = Vec::new();
    let mut cursor = ClaimCursor::default();
    while !stress.drained.load(Ordering::Relaxed) {
        let free = rng.usize(1..=3);
        let options = stress.options.clone().jobs_per_turn(rng.usize(1..=4));
        cursor.thorough = fastrand::bool();
        let claimed = crate::worker::claim_steps::claim(
            &stress.store,
            &mut conn,
            &options,
            free,
            None,
            &mut cursor,
        );
        let claimed = match claimed.await {
            Ok(claimed) => claimed,
            Err(error) => {
                stress.book.violation(format!("a claim failed: {error}"));
                conn = stress.session("claimer").await;
                continue;
            }
        };
        if claimed.jobs.is_empty() {
            sleep(pause(&mut rng, 8)).await;
            continue;
        }
        let mut jobs = claimed.jobs;
        let waits =
            if rng.u8(0..8) == 0 { jobs.split_off(rng.usize(0..=jobs.len())) } else { Vec::new() };
        let mut runs = Vec::new();
        for job in jobs {
            let slot = match slots.pop() {
                Some(slot) => slot,
                None => stress.session("holder").await,
            };
            runs.push(run(&stress, rng.fork(), job, slot));
        }
        let runs = futures::future::join_all(runs);
        let (left, ()) = tokio::join!(runs, give_back(&stress, &mut rng, &mut conn, waits));
        slots.extend(left.into_iter().flatten());
    }
}

/// Gives back what was claimed for slots that did not come free.
async fn give_back(
    stress: &Stress,
    rng: &mut fastrand::Rng,
    conn: &mut PgConnection,
    waits: Vec<Claim>,
) {
    let claims: Vec<_> = waits.iter().collect();
    if claims.is_empty() {
        return;
    }
    sleep(pause(rng, 100)).await;
    let release = async |conn: &mut PgConnection| stress.store.release(conn, Q, &claims).await;
    match in_short_tx(conn, release).await {
        Ok(given) => given.iter().for_each(|_| stress.book.count("claims given back, or over")),
        Err(error) if gave_up_waiting(&error) => {}
        Err(error) => stress.book.violation(format!("giving back failed: {error}")),
    }
}

/// One claimed job; its connection comes back unless it was lost.
async fn run(
    stress: &Stress,
    mut rng: fastrand::Rng,
    mut claim: Claim,
    mut conn: PgConnection,
) -> Option<PgConnection> {
    // What is left at the end is to be gone soon.
    let mishaps = !stress.stop.load(Ordering::Relaxed);
    if mishaps && rng.u8(0..30) == 0 {
        stress.book.count("stalled before the hold");
        sleep(pause(&mut rng, 300)).await;
    }
    if mishaps && rng.u8(0..40) == 0 {
        stress.book.count("died before the hold");
        return Some(conn);
    }
    loop {
        match run_held(stress, &mut rng, &claim, &mut conn).await {
            Ok(After::GoesOn(next)) => {
                stress.book.count("turns that went on to what was not claimed with them");
                claim = next;
                if mishaps && rng.u8(0..30) == 0 {
                    stress.book.count("died behind a job that its turn went on from");
                    return Some(conn);
                }
            }
            Ok(After::Stays) if claim.advance() => {
                stress.book.count("turns that went on");
                if mishaps && rng.u8(0..30) == 0 {
                    stress.book.count("died between two jobs of a turn");
                    return Some(conn);
                }
            }
            Ok(After::Stays | After::Passed) => return Some(conn),
            Ok(After::Lost) => return None,
            Err(error) => {
                let what = format!("job {} failed by an error: {error}", claim.job);
                stress.book.violation(what);
                return None;
            }
        }
    }
}

/// How a job of a turn ended for its worker.
enum After {
    /// The turn goes on with the next one, if there is one.
    Stays,
    /// The same with one that was claimed as the last one ended.
    GoesOn(Claim),
    Passed,
    /// The connection is gone.
    Lost,
}

async fn run_held(
    stress: &Stress,
    rng: &mut fastrand::Rng,
    claim: &Claim,
    conn: &mut PgConnection,
) -> Result<After, sqlx::Error> {
    let group = claim.group.as_deref().unwrap();
    let Some(held) = hold(stress, claim, conn).await? else {
        stress.book.count("holds that came too late");
        PgTransactionManager::rollback(conn).await?;
        return Ok(After::Passed);
    };
    stress.book.enter(group, claim.job, lower(conn, claim).await?);
    let mut jobs = Vec::new();
    if rng.u8(0..5) == 0 {
        PgTransactionManager::begin(conn, None).await?;
        let enqueued = enqueue_some(stress, rng, conn).await;
        jobs = enqueued.map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
        if rng.u8(0..4) == 0 {
            jobs.clear();
            PgTransactionManager::rollback(conn).await?;
        } else {
            PgTransactionManager::commit(conn).await?;
        }
    }
    if rng.bool() {
        sleep(pause(rng, 10)).await;
    }
    // Before the locks go: another may enter as soon as they do.
    stress.book.leave(group, claim.job);
    let mishap = if stress.stop.load(Ordering::Relaxed) { rng.u8(4..20) } else { rng.u8(0..20) };
    let result = match mishap {
        _ if held.cancel_requested => RunResult::Cancelled,
        _ if claim.go != Disposition::Run => RunResult::Exhausted,
        0 => {
            stress.book.count("connections dropped in a hold");
            return Ok(After::Lost);
        }
        1 => {
            return by_token(
                stress,
                claim,
                &held,
                std::mem::replace(conn, stress.session("holder").await),
            )
            .await
            .map(|()| After::Passed);
        }
        2 | 3 => RunResult::Failed(JobError::retry_after("again", pause(rng, 20))),
        4 => RunResult::Failed(JobError::fail("never")),
        5 => RunResult::Released,
        _ => RunResult::Succeeded("1".into()),
    };
    if !claim.behind.is_empty()
        && let RunResult::Succeeded(result) = &result
    {
        let done = [UnrecordedSuccess { job: claim.job, result: result.clone() }];
        stress.store.record_done(conn, Q, Some(group), &done, KEEP).await?;
        end(stress, claim, &Outcome::Succeeded { result: result.clone() });
        PgTransactionManager::commit(conn).await?;
        stress.book.committed(&jobs);
        return Ok(After::Stays);
    }
    if let RunResult::Succeeded(result) = &result
        && rng.bool()
    {
        let success = Succeeded { queue: Q, claim, earlier: &[], result };
        let options = ClaimOptions::new(&stress.options, None);
        let gone =
            stress.store.settle_and_chain(conn, success, true, AfterSettle::Nothing, options);
        let gone = gone.await?;
        end(stress, claim, &Outcome::Succeeded { result: result.clone() });
        PgTransactionManager::commit(conn).await?;
        stress.book.committed(&jobs);
        return Ok(match gone {
            ChainAnswer::To { claim, .. } => After::GoesOn(claim),
            ChainAnswer::Passed | ChainAnswer::Drained => After::Passed,
        });
    }
    let outcome = decide(stress, conn, claim, &held, result, rng).await?;
    let settled = stress.store.settle(conn, Q, claim, &outcome, KEEP, held.followed);
    settled.await?;
    end(stress, claim, &outcome);
    PgTransactionManager::commit(conn).await?;
    stress.book.committed(&jobs);
    Ok(After::Passed)
}

/// As an attempt holds: a skipped row is tried again, a doubt is cleared first.
async fn hold(
    stress: &Stress,
    claim: &Claim,
    conn: &mut PgConnection,
) -> Result<Option<Box<HeldJob>>, sqlx::Error> {
    let deadline = Instant::now() + Duration::from_secs(10);
    begin_hold(conn).await?;
    while Instant::now() < deadline {
        match stress.store.hold(conn, Q, claim).await? {
            HoldAnswer::Held(held) if !held.suspected => return Ok(Some(held)),
            HoldAnswer::Held(_) => {
                stress.book.count("doubts cleared");
                PgTransactionManager::rollback(conn).await?;
                begin_short(conn).await?;
                stress
                    .store
                    .clear_suspicion(conn, claim, crate::interleavings::support::scene::TERMS.lease)
                    .await?;
                PgTransactionManager::commit(conn).await?;
                begin_hold(conn).await?;
            }
            HoldAnswer::Skipped => {
                stress.book.count("skipped holds tried again");
                sleep(Duration::from_millis(2)).await;
            }
            HoldAnswer::Lost => return Ok(None),
        }
    }
    let what = format!("{} could not be held: skipped for 10 s", claim.job);
    stress.book.violation(what);
    Ok(None)
}

/// The unfinished jobs of the group that should have run before this one.
async fn lower(conn: &mut PgConnection, claim: &Claim) -> Result<Vec<i64>, sqlx::Error> {
    let sql = format!(
        "select id from seriatim.job where queue = '{Q}' and group_id = $1 and id < $2 \
         and status in ('queued', 'started')"
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(claim.group.clone())
        .bind(claim.job)
        .fetch_all(conn)
        .await
}

/// The hold's connection is lost, and the outcome is recorded on another one, if the claim still stands then.
async fn by_token(
    stress: &Stress,
    claim: &Claim,
    held: &HeldJob,
    lost: PgConnection,
) -> Result<(), sqlx::Error> {
    drop(lost);
    let mut conn = stress.session("by token").await;
    loop {
        stress.store.terminate(&mut conn, held.session).await?;
        begin_short(&mut conn).await?;
        match stress.store.hold(&mut conn, Q, claim).await? {
            HoldAnswer::Held(held) => {
                let lost = RunResult::Broken(FailureKind::ConnectionLost, "lost".into());
                let mut rng = fastrand::Rng::with_seed(1);
                let outcome = decide(stress, &mut conn, claim, &held, lost, &mut rng).await?;
                let settled =
                    stress.store.settle(&mut conn, Q, claim, &outcome, KEEP, held.followed);
                settled.await?;
                end(stress, claim, &outcome);
                stress.book.count("settled by token");
                return PgTransactionManager::commit(&mut conn).await;
            }
            HoldAnswer::Skipped => {
                PgTransactionManager::rollback(&mut conn).await?;
                sleep(Duration::from_millis(2)).await;
            }
            HoldAnswer::Lost => {
                stress.book.count("settles by token refused");
                return PgTransactionManager::rollback(&mut conn).await;
            }
        }
    }
}

async fn decide(
    stress: &Stress,
    conn: &mut PgConnection,
    claim: &Claim,
    held: &HeldJob,
    result: RunResult,
    rng: &mut fastrand::Rng,
) -> Result<Outcome, sqlx::Error> {
    let succeeded = matches!(result, RunResult::Succeeded(_));
    let policy = &stress.options.retry;
    let attempt = Attempt {
        number: held.attempt,
        counted: held.attempt - held.forgiven.min(held.attempt),
        max: held.max_attempts.unwrap_or(policy.max_attempts),
        cancel_requested: !succeeded && stress.store.cancel_requested(conn, claim.job).await?,
    };
    let then = if rng.u8(0..4) == 0 { OutOfAttempts::Halt } else { OutOfAttempts::Continue };
    Ok(outcome::decide(result, attempt, policy, then, rng.f64()))
}

/// Before the commit: a retry by request may follow at once.
fn end(stress: &Stress, claim: &Claim, outcome: &Outcome) {
    match outcome {
        Outcome::Succeeded { .. } => {
            stress.book.count("succeeded");
            stress.book.ended(claim.job);
        }
        Outcome::Failed { then, .. } => {
            let halted = *then == crate::job::queue_options::OutOfAttempts::Halt;
            stress.book.count(if halted { "halted" } else { "failed" });
        }
        Outcome::Cancelled | Outcome::Ignored => stress.book.count("cancelled by their worker"),
        Outcome::Retried { .. } => stress.book.count("to be retried"),
        Outcome::Released => stress.book.count("released"),
    }
}

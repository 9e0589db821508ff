//! The stress's workers: claim, hold, handle, settle, and faults at each step.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use crate::JobError;
use crate::interleavings::support::producers::{enqueue_some, pause};
use crate::interleavings::support::session::{Q, begin_hold};
use crate::interleavings::support::steps::{KEEP, OPTIONS, settle};
use crate::interleavings::support::stress::Stress;
use crate::job::disposition::Disposition;
use crate::job::job::FailureKind;
use crate::job::outcome::{self, Attempt, Outcome, RunResult};
use crate::job::queue_options::OutOfAttempts;
use crate::store::{
    Claim, ClaimBounds, ClaimOptions, HoldAnswer, HoldReceipt, ScanStart, SessionId,
    UnrecordedSuccess, begin_short, gave_up_waiting, in_short_tx, transaction,
};

/// Claims for up to three slots at a time until the queue is drained.
pub(crate) async fn work(stress: Arc<Stress>, mut rng: fastrand::Rng) {
    let mut conn = stress.session("claimer").await;
    let mut slots: Vec<PgConnection> = Vec::new();
    while !stress.drained.load(Ordering::Relaxed) {
        let free = rng.usize(1..=3);
        let bounds = ClaimBounds::new(free, 0, rng.bool(), ScanStart::default());
        let jobs_per_turn = rng.usize(1..=4);
        let options = ClaimOptions { jobs_per_turn, ..ClaimOptions::new(&stress.options, None) };
        let claimed = match stress.store.claim(&mut conn, Q, bounds, options).await {
            Ok(claimed) => claimed,
            Err(error) if gave_up_waiting(&error) => continue,
            Err(error) => {
                stress.oracle.violation(format!("a claim failed: {error}"));
                conn = stress.session("claimer").await;
                continue;
            }
        };
        if claimed.jobs.is_empty() {
            sleep(pause(&mut rng, 8)).await;
            continue;
        }
        let mut jobs = claimed.jobs;
        let unstarted =
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
        let (connections, ()) =
            tokio::join!(runs, release(&stress, &mut rng, &mut conn, unstarted));
        slots.extend(connections.into_iter().flatten());
    }
}

/// Releases claims whose slots did not come free.
async fn release(
    stress: &Stress,
    rng: &mut fastrand::Rng,
    conn: &mut PgConnection,
    unstarted: Vec<Claim>,
) {
    let claims: Vec<_> = unstarted.iter().collect();
    if claims.is_empty() {
        return;
    }
    sleep(pause(rng, 100)).await;
    let write = async |conn: &mut PgConnection| stress.store.release(conn, Q, &claims).await;
    match in_short_tx(conn, write).await {
        Ok(released) => {
            for _ in &released {
                stress.oracle.count("claims released, or over");
            }
        }
        Err(error) if gave_up_waiting(&error) => {}
        Err(error) => stress.oracle.violation(format!("a release failed: {error}")),
    }
}

/// Runs one claimed turn; returns its connection unless it was lost.
async fn run(
    stress: &Stress,
    mut rng: fastrand::Rng,
    mut claim: Claim,
    mut conn: PgConnection,
) -> Option<PgConnection> {
    // No faults at the end: the rest is to be drained soon.
    let faults = !stress.stop.load(Ordering::Relaxed);
    if faults && rng.u8(0..30) == 0 {
        stress.oracle.count("stalled before the hold");
        sleep(pause(&mut rng, 300)).await;
    }
    if faults && rng.u8(0..40) == 0 {
        stress.oracle.count("died before the hold");
        return Some(conn);
    }
    loop {
        match run_held(stress, &mut rng, &claim, &mut conn).await {
            Ok(After::Kept) if claim.advance() => {
                stress.oracle.count("turns that continued with a follower");
                if faults && rng.u8(0..30) == 0 {
                    stress.oracle.count("died between two jobs of a turn");
                    return Some(conn);
                }
            }
            Ok(After::Kept | After::Passed) => return Some(conn),
            Ok(After::Lost) => return None,
            Err(error) => {
                let what = format!("job {} failed by an error: {error}", claim.job);
                stress.oracle.violation(what);
                return None;
            }
        }
    }
}

/// How a job's end leaves its turn.
enum After {
    /// The turn stays with its worker, for the next follower if there is one.
    Kept,
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
        stress.oracle.count("holds that came too late");
        transaction::rollback(conn).await?;
        return Ok(After::Passed);
    };
    let session = stress.store.session(conn).await?;
    stress.oracle.begin_handler(group, claim.job, lower(conn, claim).await?);
    let mut jobs = Vec::new();
    if rng.u8(0..5) == 0 {
        let mut savepoint = conn.begin().await?;
        let enqueued = enqueue_some(stress, rng, &mut savepoint).await;
        jobs = enqueued.map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
        if rng.u8(0..4) == 0 {
            jobs.clear();
            savepoint.rollback().await?;
        } else {
            savepoint.commit().await?;
        }
    }
    if rng.bool() {
        sleep(pause(rng, 10)).await;
    }
    // Before the locks are released: the next handler may begin as soon as they are.
    stress.oracle.end_handler(group, claim.job);
    let fate = if stress.stop.load(Ordering::Relaxed) { rng.u8(4..20) } else { rng.u8(0..20) };
    let result = match fate {
        _ if held.cancel_requested => RunResult::Cancelled,
        _ if claim.disposition != Disposition::Run => RunResult::Exhausted,
        0 => {
            stress.oracle.count("connections dropped in a hold");
            return Ok(After::Lost);
        }
        1 => {
            return by_token(
                stress,
                claim,
                session,
                std::mem::replace(conn, stress.session("holder").await),
            )
            .await
            .map(|()| After::Passed);
        }
        2 | 3 => RunResult::from(JobError::retry_after("again", pause(rng, 20))),
        4 => RunResult::from(JobError::fail("never")),
        6 => RunResult::from(JobError::snooze(pause(rng, 20))),
        5 => RunResult::Released,
        _ => RunResult::Succeeded("1".into()),
    };
    if !claim.followers.is_empty()
        && let RunResult::Succeeded(result) = &result
    {
        let done = [UnrecordedSuccess {
            job: claim.job,
            result: result.clone(),
            began: None,
            ended: None,
        }];
        stress.store.record_earlier(conn, Q, claim, &done, KEEP).await?;
        end(stress, claim, &Outcome::Succeeded { result: result.clone() });
        transaction::commit(conn).await?;
        stress.oracle.committed(&jobs);
        return Ok(After::Kept);
    }
    let outcome = decide(stress, conn, claim, result, rng).await?;
    let settled = settle(&stress.store, conn, claim, &outcome);
    settled.await?;
    end(stress, claim, &outcome);
    transaction::commit(conn).await?;
    stress.oracle.committed(&jobs);
    Ok(After::Passed)
}

/// Holds like an attempt: a skipped row is tried again, a suspicion is cleared first.
async fn hold(
    stress: &Stress,
    claim: &Claim,
    conn: &mut PgConnection,
) -> Result<Option<HoldReceipt>, sqlx::Error> {
    let deadline = Instant::now() + Duration::from_secs(10);
    begin_hold(conn).await;
    while Instant::now() < deadline {
        match stress.store.hold(conn, claim).await? {
            HoldAnswer::Held(held) if !held.suspected => return Ok(Some(held)),
            HoldAnswer::Held(_) => {
                stress.oracle.count("suspicions cleared");
                transaction::rollback(conn).await?;
                let mut tx = begin_short(conn).await?;
                stress.store.clear_suspicion(&mut tx, claim, OPTIONS.lease).await?;
                tx.commit().await?;
                begin_hold(conn).await;
            }
            HoldAnswer::Skipped => {
                stress.oracle.count("skipped holds tried again");
                sleep(Duration::from_millis(2)).await;
            }
            HoldAnswer::Lost => return Ok(None),
        }
    }
    let what = format!("{} could not be held: skipped for 10 s", claim.job);
    stress.oracle.violation(what);
    Ok(None)
}

/// Returns the unfinished jobs of the group that should have run before this one.
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

/// Loses the hold's connection, and records the outcome on another one if the claim is still the
/// same.
async fn by_token(
    stress: &Stress,
    claim: &Claim,
    session: SessionId,
    lost: PgConnection,
) -> Result<(), sqlx::Error> {
    drop(lost);
    let mut conn = stress.session("by token").await;
    loop {
        stress.store.terminate(&mut conn, session).await?;
        let mut tx = begin_short(&mut conn).await?;
        match stress.store.hold(&mut tx, claim).await? {
            HoldAnswer::Held(_) => {
                let lost = RunResult::Broken(FailureKind::ConnectionLost, "lost".into());
                let mut rng = fastrand::Rng::with_seed(1);
                let outcome = decide(stress, &mut tx, claim, lost, &mut rng).await?;
                let settled = settle(&stress.store, &mut tx, claim, &outcome);
                settled.await?;
                end(stress, claim, &outcome);
                stress.oracle.count("settled by token");
                return tx.commit().await;
            }
            HoldAnswer::Skipped => {
                tx.rollback().await?;
                sleep(Duration::from_millis(2)).await;
            }
            HoldAnswer::Lost => {
                stress.oracle.count("settles by token refused");
                return tx.rollback().await;
            }
        }
    }
}

async fn decide(
    stress: &Stress,
    conn: &mut PgConnection,
    claim: &Claim,
    result: RunResult,
    rng: &mut fastrand::Rng,
) -> Result<Outcome, sqlx::Error> {
    let succeeded = matches!(result, RunResult::Succeeded(_));
    let policy = &stress.options.retry;
    let sql = "select j.attempts + (g.started_at is not null)::integer, j.attempts_forgiven, j.max_attempts \
        from seriatim.job j, seriatim.queue_group g where j.id = $1 and g.claim = $2";
    let (number, forgiven, max): (i32, i32, Option<i32>) =
        sqlx::query_as(sql).bind(claim.job).bind(claim.token).fetch_one(&mut *conn).await?;
    let [number, forgiven] = [number, forgiven].map(i32::unsigned_abs);
    let attempt = Attempt {
        number,
        counted: number - forgiven.min(number),
        max: max.map_or(policy.max_attempts, i32::unsigned_abs),
        cancel_requested: !succeeded
            && stress.store.at_failure(conn, claim.job).await?.cancel_requested,
        retry_undecodable: false,
    };
    let then = if rng.u8(0..4) == 0 { OutOfAttempts::Halt } else { OutOfAttempts::Continue };
    Ok(outcome::decide(result, attempt, policy, then, rng.f64()))
}

/// Called before the commit: a retry by request may follow at once.
fn end(stress: &Stress, claim: &Claim, outcome: &Outcome) {
    match outcome {
        Outcome::Succeeded { .. } => {
            stress.oracle.count("succeeded");
            stress.oracle.ended(claim.job);
        }
        Outcome::Failed { then, .. } => {
            let halted = *then == OutOfAttempts::Halt;
            stress.oracle.count(if halted { "halted" } else { "failed" });
        }
        Outcome::Cancelled | Outcome::Ignored => stress.oracle.count("cancelled by their worker"),
        Outcome::Retried { .. } => stress.oracle.count("to be retried"),
        Outcome::Snoozed { .. } => stress.oracle.count("snoozed"),
        Outcome::Released => stress.oracle.count("released"),
    }
}

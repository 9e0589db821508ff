//! Takes a claimed job's row locks, for the handler's whole run or from its first `tx()` on.

use std::time::Duration;

use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;
use tokio::time::{Instant, sleep};

use crate::attempt::connection::{PreheldJob, SlotConnection};
use crate::liveness::context::Context;
use crate::store::{
    CLAIM_LEASE, Claim, HeldJob, Hold, HoldAnswer, HoldReceipt, LoadedJob, ServerId, SessionId,
    begin_hold, begin_short, cannot_check, gave_up_waiting, notice_lost_clients,
};

/// Delay before retrying a row that `SKIP LOCKED` skipped.
pub(crate) const RETRY_SKIPPED: Duration = Duration::from_millis(4);
/// Bounds the retries of a hold: an adopter or a claim locks a row for milliseconds.
const HOLD_LIMIT: Duration = Duration::from_secs(2);

/// Takes the locks of a job that the claim has read; in one round trip unless a row is locked.
///
/// `None` if the claim is lost. Not cancel safe: a caller that gives up closes the connection, as
/// with [`hold`].
pub(crate) async fn hold_known(
    context: &Context,
    queue: &str,
    claim: &Claim,
    known: LoadedJob,
    conn: &mut SlotConnection,
) -> Result<Option<(LoadedJob, Hold, Instant)>, sqlx::Error> {
    let preheld = conn.preheld.take().filter(|preheld| preheld.job == claim.job);
    let (held, asked_at) = if let Some(PreheldJob { receipt, asked_at, .. }) = preheld {
        (Some(receipt), asked_at)
    } else {
        let asked_at = Instant::now();
        conn.begun = true;
        let first = (!conn.watched).then_some(&context.limits);
        match context.store.begin_and_hold(conn, claim, first).await {
            Err(error) if gave_up_waiting(&error) || cannot_check(&error, &context.limits) => {
                (None, asked_at)
            }
            answer => {
                let held = answer?;
                // Else the slower way reads the server as well.
                conn.watched |= held.is_some();
                if let Some(session) = held.and_then(|held| held.session) {
                    conn.server = session.server;
                }
                (held, asked_at)
            }
        }
    };
    let Some(HoldReceipt { pid, session, xid }) = held else {
        conn.rollback().await?;
        let held = hold(context, queue, claim, CLAIM_LEASE, conn).await?;
        let LoadedJob { data, waits, .. } = known;
        return Ok(held
            .map(|(HeldJob { job, hold, .. }, at)| (LoadedJob { data, waits, ..job }, hold, at)));
    };
    // Behind a transaction pooler each transaction may have another session.
    let session = match session.or(conn.session.filter(|session| session.pid == pid)) {
        Some(session) => session,
        None => context.store.session(conn).await?,
    };
    conn.session = Some(session);
    let session = SessionId { server: server_of(context, conn), ..session };
    Ok(Some((known, Hold { session, xid, followed: true }, asked_at)))
}

/// The server that can judge a hold on `conn`. Behind a transaction pooler that may be another one
/// tomorrow.
fn server_of(context: &Context, conn: &SlotConnection) -> Option<ServerId> {
    conn.server.filter(|_| !context.pooler_state.pooled.is_cancelled())
}

/// Tells the server to notice when this process is gone, and reads which one it is.
async fn watch_client(context: &Context, conn: &mut SlotConnection) -> Result<(), sqlx::Error> {
    if !conn.watched {
        notice_lost_clients(conn, &context.limits).await?;
        conn.server = context.store.server(conn).await?;
        conn.watched = true;
    }
    Ok(())
}

/// Takes the job's locks on `conn`, and clears a suspicion. `None` if the claim is lost.
///
/// Also returns when the session was asked, and so lived. A suspected claim is given `lease` again.
/// Not cancel safe: a caller that gives up closes the connection.
pub(crate) async fn hold(
    context: &Context,
    queue: &str,
    claim: &Claim,
    lease: Duration,
    conn: &mut SlotConnection,
) -> Result<Option<(HeldJob, Instant)>, sqlx::Error> {
    let store = &context.store;
    let deadline = Instant::now() + HOLD_LIMIT;
    watch_client(context, conn).await?;
    begin_hold(conn).await?;
    while Instant::now() < deadline {
        let asked_at = Instant::now();
        let answer = match store.hold(conn, queue, claim).await {
            Err(error) if gave_up_waiting(&error) => {
                PgTransactionManager::rollback(conn).await?;
                begin_hold(conn).await?;
                continue;
            }
            answer => answer?,
        };
        match answer {
            HoldAnswer::Held(mut held) if !held.suspected => {
                held.hold.session.server = server_of(context, conn);
                return Ok(Some((*held, asked_at)));
            }
            HoldAnswer::Held(_) => {
                PgTransactionManager::rollback(conn).await?;
                begin_short(conn).await?;
                store.clear_suspicion(conn, claim, lease).await?;
                PgTransactionManager::commit(conn).await?;
                begin_hold(conn).await?;
            }
            HoldAnswer::Skipped => sleep(RETRY_SKIPPED).await,
            HoldAnswer::Lost => break,
        }
    }
    PgTransactionManager::rollback(conn).await?;
    Ok(None)
}

//! Takes a claimed job's row locks, for the handler's whole run or from its first `tx()` on.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::attempt::connection::{PreheldJob, SlotConnection};
use crate::liveness::context::Context;
use crate::store::{
    Claim, Hold, HoldAnswer, HoldReceipt, ServerId, SessionId, begin_short, cannot_check,
    gave_up_waiting,
};

/// Delay before retrying a row that `SKIP LOCKED` skipped.
pub(crate) const RETRY_SKIPPED: Duration = Duration::from_millis(4);
/// Bounds the retries of a hold: an adopter or a claim locks a row for milliseconds.
const HOLD_LIMIT: Duration = Duration::from_secs(2);

/// A job whose locks `conn` has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldJob {
    pub(crate) hold: Hold,
    /// When the session was asked, and so lived.
    pub(crate) asked_at: Instant,
    /// A request to cancel the job is there already.
    pub(crate) cancel_requested: bool,
}

/// Takes the job's locks on `conn`, in a transaction that it begins, and clears a suspicion; in one
/// round trip unless a row is locked. `None` if the claim is lost.
///
/// A suspected claim is given `lease` again. Not cancel safe: a caller that gives up closes the
/// connection.
pub(crate) async fn hold(
    context: &Context,
    claim: &Claim,
    lease: Duration,
    conn: &mut SlotConnection,
) -> Result<Option<HeldJob>, sqlx::Error> {
    let preheld = conn.preheld.take().filter(|preheld| preheld.job == claim.job);
    if let Some(PreheldJob { receipt, asked_at, .. }) = preheld {
        return held(context, conn, receipt, asked_at).await.map(Some);
    }
    let deadline = Instant::now() + HOLD_LIMIT;
    loop {
        let asked_at = Instant::now();
        conn.begun = true;
        let first = (!conn.watched).then_some(&context.limits);
        let answer = match context.store.begin_and_hold(conn, claim, first).await {
            Err(error) if gave_up_waiting(&error) || cannot_check(&error, &context.limits) => {
                HoldAnswer::Skipped
            }
            answer => answer?,
        };
        if let HoldAnswer::Held(receipt) = answer {
            conn.watched = true;
            conn.server = receipt.session.map_or(conn.server, |session| session.server);
            if !receipt.suspected {
                return held(context, conn, receipt, asked_at).await.map(Some);
            }
        }
        conn.rollback().await?;
        match answer {
            HoldAnswer::Held(_) if Instant::now() < deadline => {
                let mut tx = begin_short(conn).await?;
                context.store.clear_suspicion(&mut tx, claim, lease).await?;
                tx.commit().await?;
            }
            HoldAnswer::Skipped if Instant::now() < deadline => sleep(RETRY_SKIPPED).await,
            HoldAnswer::Held(_) | HoldAnswer::Skipped | HoldAnswer::Lost => return Ok(None),
        }
    }
}

/// Returns the locks that a session has, with what identifies it.
async fn held(
    context: &Context,
    conn: &mut SlotConnection,
    receipt: HoldReceipt,
    asked_at: Instant,
) -> Result<HeldJob, sqlx::Error> {
    let HoldReceipt { pid, session, xid, cancel_requested, .. } = receipt;
    // Behind a transaction pooler each transaction may have another session.
    let session = match session.or(conn.session.filter(|session| session.pid == pid)) {
        Some(session) => session,
        None => context.store.session(conn).await?,
    };
    conn.session = Some(session);
    let session = SessionId { server: server_of(context, conn), ..session };
    Ok(HeldJob { hold: Hold { session, xid }, asked_at, cancel_requested })
}

/// The server that can judge a hold on `conn`. Behind a transaction pooler that may be another one
/// tomorrow.
fn server_of(context: &Context, conn: &SlotConnection) -> Option<ServerId> {
    conn.server.filter(|_| !context.pooler_state.pooled.is_cancelled())
}

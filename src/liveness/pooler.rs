//! The way to the server: whether a pooler is on it that takes sessions away, which is asked before anything else is done.
//!
//! Behind a pooler of transactions a processor goes on without what needs a session of its own: wake-ups, presence, and
//! names of statements. Behind a pooler of statements nothing is safe, and nothing is claimed.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::BackgroundError;
use crate::liveness::context::Context;
use crate::store::WorkConnection;
use crate::store::{PoolerKind, detect_pooler};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// After a look that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Looks until it is known or `stop`, and has `looking` drop then. What it means for the settings `wants` (whether sessions of its own were wanted).
pub(crate) async fn look(
    context: &Context,
    wants: bool,
    stop: &CancellationToken,
    _looking: DropGuard,
) {
    let known = async {
        loop {
            match timeout(LIMIT, ask(context)).await {
                Ok(Ok(found)) => return found,
                Ok(Err(error)) => tracing::debug!("could not look for a pooler: {error}"),
                Err(_) => tracing::debug!("could not look for a pooler in {LIMIT:?}"),
            }
            // Its users report what is wrong with the server, and go on to.
            context.pooler_state.looked.cancel();
            sleep(AGAIN).await;
        }
    };
    let found = tokio::select! {
        () = stop.cancelled() => return,
        found = known => found,
    };
    match found {
        PoolerKind::Nothing => {}
        PoolerKind::Transactions => notice(context, wants),
        PoolerKind::Statements(source) => {
            context.pooler_state.refused.cancel();
            context.stop.cancel();
            context.report(&BackgroundError::StatementPooler(source));
        }
    }
}

/// A pooler of transactions was seen.
pub(crate) fn notice(context: &Context, wants: bool) {
    if context.pooler_state.pooled.is_cancelled() {
        return;
    }
    context.store.send_no_names();
    context.pooler_state.pooled.cancel();
    if wants {
        context.report(&BackgroundError::TransactionPooler);
    } else {
        tracing::info!("a transaction pooler is between this processor and the server");
    }
}

async fn ask(context: &Context) -> Result<PoolerKind, sqlx::Error> {
    let mut one = WorkConnection::from(context.side.acquire().await?);
    let mut other = WorkConnection::from(context.side.acquire().await?);
    let found = detect_pooler(&mut one, &mut other).await?;
    if matches!(found, PoolerKind::Nothing | PoolerKind::Transactions) {
        one.done();
        other.done();
    }
    Ok(found)
}

//! Detects a pooler between the processor and the server, before the first claim.
//!
//! Behind a transaction pooler a processor goes on without sessions of its own: no wake-ups, no
//! presence, no named statements. Behind a statement pooler nothing is safe, and nothing is
//! claimed.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::context::Context;
use crate::store::WorkConnection;
use crate::store::{PoolerKind, detect_pooler};

/// Bounds one detection.
const LIMIT: Duration = Duration::from_secs(5);
/// Delay after a detection that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Detects until it is known or `stop`. `sessions_wanted`: the settings ask for wake-ups or
/// presence.
pub(crate) async fn detect(context: &Context, sessions_wanted: bool, stop: &CancellationToken) {
    let known = async {
        loop {
            match timeout(LIMIT, detect_once(context)).await {
                Ok(Ok(found)) => return found,
                Ok(Err(error)) => tracing::debug!("could not detect a pooler: {error}"),
                Err(_) => tracing::debug!("could not detect a pooler in {LIMIT:?}"),
            }
            // Other parts of the processor report what is wrong with the server, and try again.
            context.pooler_state.detected.cancel();
            sleep(RETRY).await;
        }
    };
    let found = tokio::select! {
        () = stop.cancelled() => return,
        found = known => found,
    };
    match found {
        PoolerKind::Nothing => {}
        PoolerKind::Transactions => accept_transaction_pooler(context, sessions_wanted),
        PoolerKind::Statements(source) => {
            context.pooler_state.refused.cancel();
            context.stop.cancel();
            context.report(BackgroundError::StatementPooler(source));
        }
    }
}

/// Why a check before the start failed.
pub(crate) enum CheckError {
    /// A statement pooler is there.
    Statements(sqlx::Error),
    Database(sqlx::Error),
}

/// Detects once, before the start, and notes what was found.
pub(crate) async fn check(context: &Context, sessions_wanted: bool) -> Result<(), CheckError> {
    match detect_once(context).await.map_err(CheckError::Database)? {
        PoolerKind::Nothing => {}
        PoolerKind::Transactions => accept_transaction_pooler(context, sessions_wanted),
        PoolerKind::Statements(source) => return Err(CheckError::Statements(source)),
    }
    context.pooler_state.detected.cancel();
    Ok(())
}

/// Switches the processor to the parts that work behind a transaction pooler. Reports that once.
pub(crate) fn accept_transaction_pooler(context: &Context, sessions_wanted: bool) {
    if context.pooler_state.pooled.is_cancelled() {
        return;
    }
    context.store.send_no_names();
    context.pooler_state.pooled.cancel();
    if sessions_wanted {
        context.report(BackgroundError::TransactionPooler);
    } else {
        tracing::info!("a transaction pooler is between this processor and the server");
    }
}

async fn detect_once(context: &Context) -> Result<PoolerKind, sqlx::Error> {
    let mut one = WorkConnection::from(context.side.acquire().await?);
    let mut other = WorkConnection::from(context.side.acquire().await?);
    let found = detect_pooler(&mut one, &mut other).await?;
    if matches!(found, PoolerKind::Nothing | PoolerKind::Transactions) {
        one.done();
        other.done();
    }
    Ok(found)
}

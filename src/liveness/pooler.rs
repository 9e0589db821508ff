//! The way to the server: whether a pooler is on it that takes sessions away, which is asked before anything else is done.
//!
//! Behind a pooler of transactions a processor goes on without what needs a session of its own: wake-ups, presence, and
//! names of statements. Behind a pooler of statements nothing is safe, and nothing is claimed.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::attempt::connection::WorkConnection;
use crate::error::BackgroundError;
use crate::liveness::context::Shared;
use crate::store::{Between, between};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// After a look that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What is known of the way.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Somebody has looked. Where the server cannot be reached, whatever else is tried fails as well.
    looked: CancellationToken,
    /// A connection has no session of its own.
    pub(crate) pooled: CancellationToken,
    /// There are no transactions.
    refused: CancellationToken,
}

impl Route {
    /// Lets everybody go on when it is dropped, with whoever was to look.
    pub(crate) fn looking(&self) -> DropGuard {
        self.looked.clone().drop_guard()
    }

    /// Waits until somebody has looked; whether there is a way at all.
    pub(crate) async fn is_open(&self) -> bool {
        self.looked.cancelled().await;
        !self.refused.is_cancelled()
    }
}

/// Looks until it is known or `stop`, and has `looking` drop then. What it means for the settings `wants` (whether sessions of its own were wanted).
pub(crate) async fn look(
    shared: &Shared,
    wants: bool,
    stop: &CancellationToken,
    _looking: DropGuard,
) {
    let known = async {
        loop {
            match timeout(LIMIT, ask(shared)).await {
                Ok(Ok(found)) => return found,
                Ok(Err(error)) => tracing::debug!("could not look for a pooler: {error}"),
                Err(_) => tracing::debug!("could not look for a pooler in {LIMIT:?}"),
            }
            // Its users report what is wrong with the server, and go on to.
            shared.route.looked.cancel();
            sleep(AGAIN).await;
        }
    };
    let found = tokio::select! {
        () = stop.cancelled() => return,
        found = known => found,
    };
    match found {
        Between::Nothing => {}
        Between::Transactions => notice(shared, wants),
        Between::Statements(source) => {
            shared.route.refused.cancel();
            shared.stop.cancel();
            shared.report(&BackgroundError::StatementPooler(source));
        }
    }
}

/// A pooler of transactions was seen.
pub(crate) fn notice(shared: &Shared, wants: bool) {
    if shared.route.pooled.is_cancelled() {
        return;
    }
    shared.store.sends_no_names();
    shared.route.pooled.cancel();
    if wants {
        shared.report(&BackgroundError::TransactionPooler);
    } else {
        tracing::info!("a transaction pooler is between this processor and the server");
    }
}

async fn ask(shared: &Shared) -> Result<Between, sqlx::Error> {
    let mut one = WorkConnection::from(shared.side.acquire().await?);
    let mut other = WorkConnection::from(shared.side.acquire().await?);
    let found = between(&mut one, &mut other).await?;
    if matches!(found, Between::Nothing | Between::Transactions) {
        one.done();
        other.done();
    }
    Ok(found)
}

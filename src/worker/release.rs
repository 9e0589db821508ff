//! Giving claimed jobs back that were not begun, as if they had not been claimed.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::connection::WorkConnection;
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::run::Run;
use crate::attempt::settle::ANSWER_LIMIT;
use crate::error::BackgroundError;
use crate::job::queue_options::Hold;
use crate::job::redact::quiet;
use crate::liveness::context::Shared;
use crate::liveness::leases::Kept;
use crate::store::short;

/// How long it is tried. By transaction what stays claimed is taken over by then as any job whose worker does not come, which
/// costs it an attempt. A lease stands for as long as it is extended: that is tried until the processor stops, and left to those
/// who judge it then.
const LIMIT: Duration = Duration::from_secs(3);

/// A claim whose handler has not begun.
pub(crate) struct Unbegun {
    pub(crate) run: Run,
    /// If a lease keeps it, which is extended until it is back.
    #[allow(dead_code)] // For its drop.
    pub(crate) kept: Option<Kept>,
}

/// Gives jobs of one queue back.
pub(crate) async fn unclaim(mut claims: Vec<Unbegun>) {
    let Some(Unbegun { run, .. }) = claims.first() else { return };
    let (shared, queue) = (run.shared.clone(), run.queue.name.clone());
    let leased = run.queue.options.hold != Hold::Transaction;
    let deadline = Instant::now() + LIMIT;
    let mut pause = RETRY_SKIPPED;
    let mut source = None;
    let mut reported = false;
    loop {
        match give_back(&shared, &queue, &mut claims).await {
            Ok(()) => {}
            Err(sqlx::Error::PoolClosed) => return,
            Err(error) => {
                if error.as_database_error().is_some() {
                    // One that the database refuses must not keep the others.
                    claims = give_back_each(&shared, &queue, claims).await;
                }
                source = Some(error);
            }
        }
        let Some(Unbegun { run, .. }) = claims.first() else { return };
        if Instant::now() >= deadline {
            if !std::mem::replace(&mut reported, true) {
                let (queue, job) = (queue.to_string(), run.claim.job);
                let source = source.take().map(quiet);
                shared.report(&BackgroundError::Hold { queue, job, source });
            }
            if !leased || shared.stop.is_cancelled() {
                return;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// One try for all; those whose rows somebody has for a moment stay. Where only the answer was lost, the next try finds that
/// the tokens are gone.
async fn give_back(
    shared: &Shared,
    queue: &str,
    claims: &mut Vec<Unbegun>,
) -> Result<(), sqlx::Error> {
    let write = async {
        let mut conn = WorkConnection::from(shared.side.acquire().await?);
        let started: Vec<_> = claims.iter().map(|of| &of.run.claim).collect();
        let unclaim =
            async |conn: &mut PgConnection| shared.store.unclaim(conn, queue, &started).await;
        let over = short(&mut conn, unclaim).await?;
        conn.done();
        Ok::<_, sqlx::Error>(over)
    };
    let over = match timeout(ANSWER_LIMIT, write).await {
        Ok(written) => written?,
        Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    };
    claims.retain(|of| !over.contains(&of.run.claim.token));
    tracing::debug!(
        queue,
        jobs = over.len(),
        "claimed jobs given back before they began, or taken over"
    );
    Ok(())
}

/// Those that stay.
async fn give_back_each(shared: &Shared, queue: &str, claims: Vec<Unbegun>) -> Vec<Unbegun> {
    let mut stay = Vec::new();
    for claim in claims {
        let mut one = vec![claim];
        // All of them are tried again.
        let _ = give_back(shared, queue, &mut one).await;
        stay.append(&mut one);
    }
    stay
}

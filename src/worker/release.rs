//! Giving claimed jobs back that were not begun, as if they had not been claimed.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::settle_late::ANSWER_LIMIT;
use crate::attempt::turn::ClaimedTurn;
use crate::error::BackgroundError;
use crate::job::queue_options::Hold;
use crate::job::redact::redact_detail;
use crate::liveness::context::Context;
use crate::liveness::leases::LeaseGuard;
use crate::store::WorkConnection;
use crate::store::in_short_tx;

/// How long it is tried. By transaction what stays claimed is taken over by then as any job whose worker does not come, which
/// costs it an attempt. A lease stands for as long as it is extended: that is tried until the processor stops, and left to those
/// who judge it then.
const LIMIT: Duration = Duration::from_secs(3);

/// A claim whose handler has not begun.
pub(crate) struct UnstartedTurn {
    pub(crate) run: ClaimedTurn,
    /// If a lease keeps it, which is extended until it is back.
    #[allow(dead_code)] // For its drop.
    pub(crate) guard: Option<LeaseGuard>,
}

/// Gives jobs of one queue back.
pub(crate) async fn release(mut claims: Vec<UnstartedTurn>) {
    let Some(UnstartedTurn { run, .. }) = claims.first() else { return };
    let (context, queue) = (run.context.clone(), run.queue.name.clone());
    let leased = run.queue.options.hold != Hold::Transaction;
    let deadline = Instant::now() + LIMIT;
    let mut pause = RETRY_SKIPPED;
    let mut source = None;
    let mut reported = false;
    loop {
        match give_back(&context, &queue, &mut claims).await {
            Ok(()) => {}
            Err(sqlx::Error::PoolClosed) => return,
            Err(error) => {
                if error.as_database_error().is_some() {
                    // One that the database refuses must not keep the others.
                    claims = give_back_each(&context, &queue, claims).await;
                }
                source = Some(error);
            }
        }
        let Some(UnstartedTurn { run, .. }) = claims.first() else { return };
        if Instant::now() >= deadline {
            if !std::mem::replace(&mut reported, true) {
                let (queue, job) = (queue.to_string(), run.claim.job);
                let source = source.take().map(redact_detail);
                context.report(&BackgroundError::Hold { queue, job, source });
            }
            if !leased || context.stop.is_cancelled() {
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
    context: &Context,
    queue: &str,
    claims: &mut Vec<UnstartedTurn>,
) -> Result<(), sqlx::Error> {
    let write = async {
        let mut conn = WorkConnection::from(context.side.acquire().await?);
        let started: Vec<_> = claims.iter().map(|of| &of.run.claim).collect();
        let release =
            async |conn: &mut PgConnection| context.store.release(conn, queue, &started).await;
        let over = in_short_tx(&mut conn, release).await?;
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
async fn give_back_each(
    context: &Context,
    queue: &str,
    claims: Vec<UnstartedTurn>,
) -> Vec<UnstartedTurn> {
    let mut stay = Vec::new();
    for claim in claims {
        let mut one = vec![claim];
        // All of them are tried again.
        let _ = give_back(context, queue, &mut one).await;
        stay.append(&mut one);
    }
    stay
}

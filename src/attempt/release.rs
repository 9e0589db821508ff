//! Releases jobs that were claimed and not begun: the group row by token, then the jobs.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::settle_late::ANSWER_LIMIT;
use crate::attempt::turn::ClaimedTurn;
use crate::error::BackgroundError;
use crate::job::redact::redact_detail;
use crate::liveness::leases::LeaseGuard;
use crate::store::WorkConnection;
use crate::store::in_short_tx;

/// How long to retry a release. By then a transaction-hold claim has expired (and costs an
/// attempt). A leased claim is retried until shutdown, because its lease is still extended.
const LIMIT: Duration = Duration::from_secs(3);

/// A claim whose handler has not begun.
pub(crate) struct UnstartedTurn {
    pub(crate) run: ClaimedTurn,
    /// Extends the lease until the release; `None` by transaction.
    #[allow(dead_code)] // For its drop.
    pub(crate) guard: Option<LeaseGuard>,
}

/// Releases claims of one queue, which were made on one server.
pub(crate) async fn release(mut claims: Vec<UnstartedTurn>) {
    let Some(UnstartedTurn { run, .. }) = claims.first() else { return };
    let of = run.clone();
    let (context, queue) = (&of.context, &of.queue.name);
    let leased = run.queue.options.hold.is_leased();
    let deadline = Instant::now() + LIMIT;
    let mut pause = RETRY_SKIPPED;
    let mut source = None;
    let mut reported = false;
    loop {
        match try_release(&of, &mut claims).await {
            Ok(()) => {}
            Err(sqlx::Error::PoolClosed) => return,
            Err(error) => {
                if error.as_database_error().is_some() {
                    // A claim that the database refuses must not delay the others.
                    claims = release_each(&of, claims).await;
                }
                source = Some(error);
            }
        }
        let Some(UnstartedTurn { run, .. }) = claims.first() else { return };
        if Instant::now() >= deadline {
            if !std::mem::replace(&mut reported, true) {
                let (queue, job) = (queue.to_string(), run.claim.job);
                let source = source.take().map(redact_detail);
                context.report(BackgroundError::Hold { queue, job, source });
            }
            if !leased || context.stop.is_cancelled() {
                return;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Tries once for all claims. A claim with a locked row stays in `claims`. If only the answer was
/// lost, the next try finds that the tokens are gone.
async fn try_release(of: &ClaimedTurn, claims: &mut Vec<UnstartedTurn>) -> Result<(), sqlx::Error> {
    let (context, queue) = (&of.context, &*of.queue.name);
    let write = async {
        let mut conn = WorkConnection::from(context.side.acquire_at(of.origin.as_ref()).await?);
        let given: Vec<_> = claims.iter().map(|unstarted| &unstarted.run.claim).collect();
        let release =
            async |conn: &mut PgConnection| context.store.release(conn, queue, &given).await;
        let released = in_short_tx(&mut conn, release).await?;
        conn.done();
        Ok::<_, sqlx::Error>(released)
    };
    let released = match timeout(ANSWER_LIMIT, write).await {
        Ok(written) => written?,
        Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    };
    claims.retain(|unstarted| !released.contains(&unstarted.run.claim.token));
    tracing::debug!(
        queue,
        jobs = released.len(),
        "claimed jobs released before they began, or taken over"
    );
    Ok(())
}

/// Tries each claim by itself. Returns the claims that stay.
async fn release_each(of: &ClaimedTurn, claims: Vec<UnstartedTurn>) -> Vec<UnstartedTurn> {
    let mut stay = Vec::new();
    for claim in claims {
        let mut one = vec![claim];
        // The caller tries the remaining claims again.
        let _ = try_release(of, &mut one).await;
        stay.append(&mut one);
    }
    stay
}

//! Giving claimed jobs back that were not begun, as if they had not been claimed.

use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Run;
use crate::connection::WorkConnection;
use crate::hold::RETRY_SKIPPED;
use crate::record::ANSWER_LIMIT;
use crate::shared::Shared;
use crate::store::{HoldAnswer, short};

/// How long it is tried. What stays claimed is taken over as any other job whose worker does not come, which costs it an
/// attempt.
const LIMIT: Duration = Duration::from_secs(15);

/// Gives jobs of one queue back, each in a short transaction of its own, and wakes others for them.
pub(crate) async fn unclaim(mut runs: Vec<Run>) {
    let Some(shared) = runs.first().map(|run| run.shared.clone()) else { return };
    let deadline = Instant::now() + LIMIT;
    let mut pause = RETRY_SKIPPED;
    while !runs.is_empty() && Instant::now() < deadline {
        let before = runs.len();
        // Where only an answer was lost, the next try finds that the token is gone.
        if !matches!(timeout(ANSWER_LIMIT, give_back(&shared, &mut runs)).await, Ok(Ok(()))) {
            pause = (pause * 2).min(Duration::from_millis(500));
        }
        if runs.len() == before {
            sleep(pause).await;
        }
    }
}

/// One try for each; those whose rows somebody has for a moment stay.
async fn give_back(shared: &Shared, runs: &mut Vec<Run>) -> Result<(), sqlx::Error> {
    let mut conn = WorkConnection::from(shared.side.acquire().await?);
    for n in (0..runs.len()).rev() {
        let run = &runs[n];
        let claim = &run.claim;
        let queue = &*run.queue.name;
        let answer = short(&mut conn, async |conn: &mut PgConnection| {
            let answer = shared.store.hold(conn, queue, claim).await?;
            if let HoldAnswer::Held(_) = answer {
                shared.store.unclaim(conn, queue, claim).await?;
                shared.store.wake_others(conn, queue).await?;
            }
            Ok(answer)
        });
        if !matches!(answer.await?, HoldAnswer::Skipped) {
            tracing::debug!(queue, job = claim.job, "claimed job given back before it began");
            runs.swap_remove(n);
        }
    }
    conn.done();
    Ok(())
}

//! Giving claimed jobs back that were not begun, as if they had not been claimed.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Run;
use crate::connection::WorkConnection;
use crate::error::BackgroundError;
use crate::hold::RETRY_SKIPPED;
use crate::record::ANSWER_LIMIT;
use crate::shared::Shared;
use crate::store::short;
use crate::withheld::quiet;

/// How long it is tried. What stays claimed is taken over by then as any job whose worker does not come, which costs it an
/// attempt.
const LIMIT: Duration = Duration::from_secs(3);

/// Gives jobs of one queue back.
pub(crate) async fn unclaim(mut runs: Vec<Run>) {
    let Some(run) = runs.first() else { return };
    let (shared, queue) = (run.shared.clone(), run.queue.name.clone());
    let deadline = Instant::now() + LIMIT;
    let mut pause = RETRY_SKIPPED;
    let mut source = None;
    loop {
        // Where only the answer was lost, the next try finds that the tokens are gone.
        match timeout(ANSWER_LIMIT, give_back(&shared, &queue, &mut runs)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => source = Some(error),
            Err(_) => source = Some(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
        let Some(run) = runs.first() else { return };
        if Instant::now() >= deadline {
            let (queue, job) = (queue.to_string(), run.claim.job);
            shared.report(&BackgroundError::Hold { queue, job, source: source.map(quiet) });
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// One try for all; those whose rows somebody has for a moment stay.
async fn give_back(shared: &Shared, queue: &str, runs: &mut Vec<Run>) -> Result<(), sqlx::Error> {
    let mut conn = WorkConnection::from(shared.side.acquire().await?);
    let claims: Vec<_> = runs.iter().map(|run| &run.claim).collect();
    let unclaim = async |conn: &mut PgConnection| shared.store.unclaim(conn, queue, &claims).await;
    let over = short(&mut conn, unclaim).await?;
    conn.done();
    runs.retain(|run| !over.contains(&run.claim.token));
    tracing::debug!(
        queue,
        jobs = over.len(),
        "claimed jobs given back before they began, or taken over"
    );
    Ok(())
}

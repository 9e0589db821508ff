//! Giving claimed jobs back that were not begun, as if they had not been claimed.

use std::io;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Run;
use crate::connection::WorkConnection;
use crate::error::BackgroundError;
use crate::hold::RETRY_SKIPPED;
use crate::queue::Hold;
use crate::record::ANSWER_LIMIT;
use crate::shared::Shared;
use crate::store::short;
use crate::withheld::quiet;

/// How long it is tried. By transaction what stays claimed is taken over by then as any job whose worker does not come, which
/// costs it an attempt. A lease stands for longer, and for as long as its process lives: that is tried until the process ends.
const LIMIT: Duration = Duration::from_secs(3);

/// Gives jobs of one queue back.
pub(crate) async fn unclaim(mut runs: Vec<Run>) {
    let Some(run) = runs.first() else { return };
    let (shared, queue) = (run.shared.clone(), run.queue.name.clone());
    let leased = run.queue.options.hold != Hold::Transaction;
    let deadline = Instant::now() + LIMIT;
    let mut pause = RETRY_SKIPPED;
    let mut source = None;
    let mut reported = false;
    loop {
        // Where only the answer was lost, the next try finds that the tokens are gone.
        match timeout(ANSWER_LIMIT, give_back(&shared, &queue, &mut runs)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => source = Some(error),
            Err(_) => source = Some(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
        let Some(run) = runs.first() else { return };
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

//! Listens for wake-ups: hints that there may be work. Polling finds what they miss.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::store::keep_open;

const RECONNECT: Duration = Duration::from_secs(1);

/// Wakes the worker of each queue that a notification names, until `stop`.
pub(crate) async fn run(
    side: &PgPool,
    channel: &str,
    workers: HashMap<String, Arc<Notify>>,
    stop: &CancellationToken,
    report: impl Fn(BackgroundError),
) {
    loop {
        let error = tokio::select! {
            () = stop.cancelled() => return,
            Err(error) = listen(side, channel, &workers) => error,
        };
        report(BackgroundError::Listener(error));
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RECONNECT) => {}
        }
    }
}

async fn listen(
    side: &PgPool,
    channel: &str,
    workers: &HashMap<String, Arc<Notify>>,
) -> Result<std::convert::Infallible, sqlx::Error> {
    let mut listener = PgListener::connect_with(side).await?;
    keep_open(&mut listener).await?;
    listener.listen(channel).await?;
    // Hints may have been missed: the workers polled before there was this session.
    wake_all(workers);
    loop {
        let Some(hint) = listener.try_recv().await? else {
            // The session was lost and opened again, with the same channel.
            keep_open(&mut listener).await?;
            wake_all(workers);
            continue;
        };
        if let Some(worker) = workers.get(hint.payload()) {
            worker.notify_one();
        }
    }
}

fn wake_all(workers: &HashMap<String, Arc<Notify>>) {
    for worker in workers.values() {
        worker.notify_one();
    }
}

//! Listens for wake-ups: hints that there may be work. Polling finds what they miss.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::side_pool::SidePool;
use crate::liveness::vitals::Vitals;
use crate::store::keep_open;

const RECONNECT: Duration = Duration::from_secs(1);

/// Wakes the worker of each queue that a notification names, until `stop`.
pub(crate) async fn run(
    side: &SidePool,
    channel: &str,
    workers: &HashMap<String, Arc<Notify>>,
    stop: &CancellationToken,
    vitals: &Vitals,
    report: impl Fn(BackgroundError),
) {
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = listen(side, channel, workers, vitals) => ended,
        };
        vitals.set_listening(false);
        let error = match ended {
            Ok(()) => continue,
            Err(error) => error,
        };
        report(BackgroundError::Listener(error));
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RECONNECT) => {}
        }
    }
}

/// Listens until the session is lost, or the processor's own connections are led elsewhere.
async fn listen(
    side: &SidePool,
    channel: &str,
    workers: &HashMap<String, Arc<Notify>>,
    vitals: &Vitals,
) -> Result<(), sqlx::Error> {
    let target = side.target();
    // A pool of its own: a session that cannot listen is not to be had again.
    let pool = side.one();
    let mut listener = tokio::select! {
        listener = PgListener::connect_with(&pool) => listener?,
        () = side.leaves(&target) => return Ok(()),
    };
    listener.eager_reconnect(false);
    keep_open(&mut listener).await?;
    listener.listen(channel).await?;
    vitals.set_listening(true);
    // Hints may have been missed: the workers polled before there was this session.
    wake_all(workers);
    loop {
        let mut hint = pin!(listener.try_recv());
        let hint = loop {
            tokio::select! {
                hint = &mut hint => break hint?,
                () = sleep(RECONNECT) => {
                    if !Arc::ptr_eq(&target, &side.target()) {
                        return Ok(());
                    }
                }
            }
        };
        let Some(hint) = hint else { return Ok(()) };
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

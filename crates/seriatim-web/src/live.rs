//! Server-sent events: one poll of the database tells all viewers that something has changed.

use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream::{self, Stream};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;

use crate::app::App;

/// The time between two polls, while a page is open.
const INTERVAL: Duration = Duration::from_secs(2);
/// Ages on the pages are at most so old, even if nothing changes.
const AT_LEAST_EVERY: u32 = 5;

/// The poll that all viewers share. It runs while there are any.
pub(crate) struct Poll {
    changes: watch::Sender<u64>,
    running: Mutex<bool>,
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self { changes: watch::Sender::new(0), running: Mutex::new(false) }
    }

    /// Tells all viewers that something has changed.
    pub(crate) fn announce(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    async fn subscribe(&self, app: &Arc<App>) -> watch::Receiver<u64> {
        let mut running = self.running.lock().await;
        let viewer = self.changes.subscribe();
        if !*running {
            *running = true;
            tokio::spawn(poll(Arc::downgrade(app)));
        }
        viewer
    }
}

/// Polls until no viewer is left.
async fn poll(app: Weak<App>) {
    let mut last = None;
    let mut unchanged = 0;
    loop {
        sleep(INTERVAL).await;
        let Some(app) = app.upgrade() else { return };
        {
            let mut running = app.poll.running.lock().await;
            if app.poll.changes.receiver_count() == 0 {
                *running = false;
                return;
            }
        }
        let seen = match app.client.queues(&app.reads).await {
            Ok(queues) => Some(digest(&queues)),
            Err(error) => {
                tracing::debug!(%error, "the poll of the page failed");
                None
            }
        };
        unchanged += 1;
        if seen != last || unchanged >= AT_LEAST_EVERY {
            last = seen;
            unchanged = 0;
            app.poll.announce();
        }
    }
}

fn digest(value: &impl std::fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    hasher.finish()
}

/// Sends an event whenever something may have changed. The page then reads itself anew.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let viewer = app.poll.subscribe(&app).await;
    let events = stream::unfold(viewer, async |mut viewer| {
        viewer.changed().await.ok()?;
        let version = *viewer.borrow_and_update();
        Some((Ok(Event::default().event("changed").data(version.to_string())), viewer))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

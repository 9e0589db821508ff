//! Server-sent events: one poll of the database reports to all viewers that something has changed,
//! or that the database does not answer.

use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures::stream;
use seriatim::admin::QueueOverview;
use tokio::time::{sleep, timeout};

use crate::app::App;

/// The time between two polls, while a page is open. A poll takes 0.4 % of the time at most, so one
/// that costs more comes later. The page that reads itself anew takes as much.
const INTERVAL: Duration = Duration::from_secs(2);
const LONGEST_INTERVAL: Duration = Duration::from_mins(1);
/// Ages on the pages are so old at most, even if nothing changes.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// A database that takes longer does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The time between two beats of a stream. A viewer that hears none in three times that reports
/// that the page is not live: this process may be frozen, or cut off.
const BEAT: Duration = Duration::from_secs(5);

/// Polls until no viewer is left.
async fn poll(app: Weak<App>) {
    let mut last = None;
    let mut interval = INTERVAL;
    let mut polled = Instant::now();
    let mut announced = Instant::now();
    loop {
        sleep(INTERVAL).await;
        let Some(app) = app.upgrade() else { return };
        if app.poll.ends().await {
            return;
        }
        let mut changed = announced.elapsed() >= AT_LEAST_EVERY;
        // A poll that costs much comes late, and an outage must not. Nor is a slow poll an outage.
        let ask = async { sqlx::query("select 1").execute(&app.reads()).await };
        let answers = matches!(timeout(ANSWERS_WITHIN, ask).await, Ok(Ok(_)));
        app.poll.answers(answers);
        if answers && polled.elapsed() >= interval {
            match timeout(ANSWERS_WITHIN, app.poll_queues()).await {
                Ok(Ok((queues, cost))) => {
                    let seen = Some(digest(&queues));
                    changed |= seen != last;
                    last = seen;
                    interval = (cost * 250).clamp(INTERVAL, LONGEST_INTERVAL);
                }
                failed => {
                    tracing::debug!(?failed, "the poll of the page failed");
                    interval = LONGEST_INTERVAL;
                }
            }
            polled = Instant::now();
        }
        if changed {
            announced = Instant::now();
            app.poll.announce();
        }
    }
}

/// Returns a digest of all but ages.
fn digest(queues: &[QueueOverview]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for queue in queues {
        let paused = queue.paused.as_ref().map(|paused| (paused.since, &paused.reason));
        let seen = (&queue.queue, paused, queue.jobs, queue.groups, queue.oldest_due, queue.served);
        format!("{seen:?}").hash(&mut hasher);
    }
    hasher.finish()
}

/// Sends `changed` whenever something may have changed: the page then reads itself anew. Sends
/// `away` when the database does not answer, and `beat` when there is no news for a while.
pub(crate) async fn events(State(app): State<Arc<App>>) -> impl IntoResponse {
    let start = || {
        tokio::spawn(poll(Arc::downgrade(&app)));
    };
    let viewer = app.poll.subscribe(start).await;
    let events = stream::unfold(viewer, async |mut viewer| {
        let event = match timeout(BEAT, viewer.changed()).await {
            Ok(changed) => {
                changed.ok()?;
                if viewer.borrow_and_update().away { "away" } else { "changed" }
            }
            Err(_) if viewer.borrow().away => "away",
            Err(_) => "beat",
        };
        let version = viewer.borrow().version;
        let event = Event::default().event(event).data(version.to_string());
        Some((Ok::<_, Infallible>(event), viewer))
    });
    // A proxy that gathers answers would keep beats for itself.
    ([("x-accel-buffering", "no")], Sse::new(events))
}

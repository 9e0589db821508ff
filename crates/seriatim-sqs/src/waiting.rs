//! Long polls: requests that wait for messages. They cost memory, not connections: one session
//! listens for all of them.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::{Mutex as Turn, watch};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout_at};

use crate::database::Database;

/// How often the queues with waiting requests are looked at, all in one statement, whatever is
/// heard: a message may become due, or another server may give one back.
const POLL: Duration = Duration::from_millis(500);
/// Delay before the next try to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Waiting {
    queues: Mutex<HashMap<String, Waited>>,
    ends: watch::Sender<bool>,
}

/// A queue that requests wait for.
struct Waited {
    queue: Arc<QueueWait>,
    requests: usize,
}

/// What the requests of one queue share.
#[derive(Default)]
struct QueueWait {
    /// Counts what may have brought a message.
    wakes: watch::Sender<u64>,
    /// Taken in turn. It has the last wake behind which nothing was found: the others of that wake
    /// need not look.
    found_nothing: Turn<u64>,
}

impl Waiting {
    /// Asks again whenever there may be something, until something comes or the time is over.
    /// Dropped, it asks no more.
    pub(crate) async fn until_any<T, E, Asked>(
        &self,
        queue: &str,
        time: Duration,
        mut ask: impl FnMut() -> Asked,
    ) -> Result<Vec<T>, E>
    where
        Asked: Future<Output = Result<Vec<T>, E>>,
    {
        let deadline = Instant::now() + time;
        let place = self.enter(queue);
        let mut wakes = place.queue.wakes.subscribe();
        let mut ends = self.ends.subscribe();
        let mut found = ask().await?;
        while found.is_empty() {
            tokio::select! {
                () = sleep_until(deadline) => break,
                ended = ends.wait_for(|ended| *ended) => {
                    drop(ended);
                    break;
                }
                woken = wakes.changed() => if woken.is_err() { break },
            }
            let wake = *wakes.borrow_and_update();
            let Ok(mut nothing_at) = timeout_at(deadline, place.queue.found_nothing.lock()).await
            else {
                break;
            };
            if *nothing_at < wake {
                found = ask().await?;
                if found.is_empty() {
                    *nothing_at = wake;
                }
            }
        }
        Ok(found)
    }

    /// Tells the requests of a queue that it may have a message.
    pub(crate) fn wake(&self, queue: &str) {
        if let Some(waited) = self.lock().get(queue) {
            waited.queue.wakes.send_modify(|wakes| *wakes += 1);
        }
    }

    /// Tells all requests.
    pub(crate) fn wake_all(&self) {
        for waited in self.lock().values() {
            waited.queue.wakes.send_modify(|wakes| *wakes += 1);
        }
    }

    /// Tells the requests of those queues that may have a message now.
    async fn wake_due(&self, database: &Database) {
        let waited: Vec<String> = self.lock().keys().cloned().collect();
        if waited.is_empty() {
            return;
        }
        match database.due_queues(&waited).await {
            Ok(due) => due.iter().for_each(|queue| self.wake(queue)),
            // It was logged.
            Err(_) => self.wake_all(),
        }
    }

    /// Ends all waits: with no messages.
    pub(crate) fn end(&self) {
        self.ends.send_replace(true);
    }

    /// Listens for enqueues, and looks at the queues now and then. Never returns.
    pub(crate) async fn listen(&self, database: &Database) {
        let channel = format!("{}.wake", database.client.schema());
        let mut ticks = interval(POLL);
        loop {
            let mut listener = match listen(database.pool(), &channel).await {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(%error, "cannot listen for messages, which are polled for");
                    sleep(LISTEN_AGAIN).await;
                    self.wake_all();
                    continue;
                }
            };
            loop {
                tokio::select! {
                    _ = ticks.tick() => self.wake_due(database).await,
                    heard = listener.try_recv() => match heard {
                        Ok(Some(heard)) => self.wake(heard.payload()),
                        // It was away for a moment.
                        Ok(None) => self.wake_all(),
                        Err(error) => {
                            tracing::warn!(%error, "the session that listens is gone");
                            break;
                        }
                    },
                }
            }
        }
    }

    fn enter(&self, queue: &str) -> Place<'_> {
        let mut queues = self.lock();
        let waited = queues
            .entry(queue.to_owned())
            .or_insert_with(|| Waited { queue: Arc::default(), requests: 0 });
        waited.requests += 1;
        Place { waiting: self, name: queue.to_owned(), queue: Arc::clone(&waited.queue) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waited>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(pool: &PgPool, channel: &str) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

/// The place of a request that waits. The queue is forgotten with the last one.
struct Place<'a> {
    waiting: &'a Waiting,
    name: String,
    queue: Arc<QueueWait>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiting.lock();
        if let Some(waited) = queues.get_mut(&self.name) {
            waited.requests -= 1;
            if waited.requests == 0 {
                queues.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_of_many_asks_when_there_is_nothing() {
        let (waiting, asked) = (Arc::new(Waiting::default()), Arc::new(AtomicU32::new(0)));
        let requests: Vec<_> = (0..100)
            .map(|_| {
                let (waiting, asked) = (Arc::clone(&waiting), Arc::clone(&asked));
                tokio::spawn(async move {
                    let ask = async || {
                        asked.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, Infallible>(Vec::<u32>::new())
                    };
                    waiting.until_any("q", Duration::from_secs(20), ask).await
                })
            })
            .collect();
        while asked.load(Ordering::Relaxed) < 100 {
            yield_now().await;
        }
        waiting.wake("q");
        waiting.wake("other");
        for request in requests {
            assert_eq!(request.await.unwrap().unwrap(), Vec::<u32>::new());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 101);
        assert!(waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn a_wake_brings_what_came() {
        let waiting = Waiting::default();
        let mut asked = 0;
        let found = waiting.until_any("q", Duration::from_secs(20), || {
            asked += 1;
            let found = if asked == 2 { vec![7] } else { Vec::new() };
            waiting.wake("q");
            async move { Ok::<_, Infallible>(found) }
        });
        assert_eq!(found.await.unwrap(), [7]);
    }

    #[tokio::test]
    async fn the_end_ends_all_waits() {
        let waiting = Waiting::default();
        let ask = async || Ok::<_, Infallible>(Vec::<u32>::new());
        let wait = waiting.until_any("q", Duration::from_secs(20), ask);
        let (found, ()) = tokio::join!(wait, async { waiting.end() });
        assert!(found.unwrap().is_empty());
    }
}

//! Long polls: requests that wait for messages. They cost memory, not connections: one session
//! listens for all of them.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Mutex as Turn, Notify, watch};
use tokio::time::{Instant, interval, sleep_until, timeout};

use crate::database::Database;
use crate::error::SqsError;

/// How often the session that listens is asked whether it lives.
const LOOK: Duration = Duration::from_millis(500);
/// How long it has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

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

/// The state that the waiting requests of one queue share.
#[derive(Default)]
struct QueueWait {
    /// Tells the request that waits longest. Without one it is kept for the next.
    news: Notify,
    /// Whether the last ask found something. Then all ask side by side, else in turn.
    has_some: AtomicBool,
    /// Counts the asks as they begin.
    begun: AtomicU64,
    /// Taken in turn. It has the number of the last ask that found nothing.
    found_nothing: Turn<u64>,
}

impl QueueWait {
    /// Asks. If it finds something there may be more, for the next request.
    async fn ask<T, E>(&self, asked: impl Future<Output = Result<Vec<T>, E>>) -> Result<Vec<T>, E> {
        let found = asked.await;
        let is_empty = found.as_ref().ok().map(Vec::is_empty);
        self.has_some.store(is_empty == Some(false), Ordering::Relaxed);
        // An error says nothing: the next request may find what this one was told of.
        if is_empty != Some(true) {
            self.news.notify_one();
        }
        found
    }

    /// The first ask of a request. One that began since it came and found nothing answers for it.
    async fn ask_first<T, E>(
        &self,
        asked: impl Future<Output = Result<Vec<T>, E>>,
    ) -> Result<Vec<T>, E> {
        let came_at = self.begun.load(Ordering::Relaxed);
        if !self.has_some.load(Ordering::Relaxed) {
            let mut nothing_at = self.found_nothing.lock().await;
            if *nothing_at > came_at {
                return Ok(Vec::new());
            }
            if !self.has_some.load(Ordering::Relaxed) {
                let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
                let found = self.ask(asked).await;
                if found.as_ref().is_ok_and(Vec::is_empty) {
                    *nothing_at = number;
                }
                return found;
            }
        }
        self.ask(asked).await
    }
}

impl Waiting {
    /// Asks, and again whenever there may be something, until something comes or the time is over.
    /// Waiting requests are woken one by one. A dropped call asks no more.
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
        let mut ends = self.ends.subscribe();
        let mut found = place.queue.ask_first(ask()).await?;
        while found.is_empty() {
            tokio::select! {
                () = sleep_until(deadline) => break,
                ended = ends.wait_for(|ended| *ended) => {
                    drop(ended);
                    break;
                }
                () = place.queue.news.notified() => {}
            }
            found = place.queue.ask(ask()).await?;
        }
        Ok(found)
    }

    /// Tells a request of a queue that it may have a message.
    pub(crate) fn wake(&self, queue: &str) {
        if let Some(waited) = self.lock().get(queue) {
            waited.queue.news.notify_one();
        }
    }

    /// Tells a request of each queue.
    pub(crate) fn wake_all(&self) {
        for waited in self.lock().values() {
            waited.queue.news.notify_one();
        }
    }

    /// Tells the requests of those queues that may have a message now; all of them if the database
    /// cannot be asked.
    pub(crate) async fn wake_due(&self, database: &Database) -> Result<(), SqsError> {
        let waited: Vec<String> = self.lock().keys().cloned().collect();
        if waited.is_empty() {
            return Ok(());
        }
        let due = database.due_queues(&waited).await.inspect_err(|_| self.wake_all())?;
        for queue in &due {
            self.wake(queue);
        }
        Ok(())
    }

    /// Ends all waits: with no messages.
    pub(crate) fn end(&self) {
        self.ends.send_replace(true);
    }

    /// Hears of enqueues until the session is lost, or gives no answer for 2 s. Returns the error.
    pub(crate) async fn hear(&self, mut listener: PgListener) -> sqlx::Error {
        let mut ticks = interval(LOOK);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let look = sqlx::query("select").execute(&mut listener);
                    match timeout(ANSWER_WITHIN, look).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => return error,
                        Err(late) => return io::Error::from(late).into(),
                    }
                }
                heard = listener.try_recv() => match heard {
                    Ok(Some(heard)) => self.wake(heard.payload()),
                    Ok(None) => return io::Error::from(io::ErrorKind::ConnectionAborted).into(),
                    Err(error) => return error,
                },
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

/// Returns a session that listens for enqueues. It ends when its connection does.
pub(crate) async fn listener(database: &Database) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(database.pool()).await?;
    listener.listen(&format!("{}.wake", database.client.schema())).await?;
    listener.eager_reconnect(false);
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
    use std::sync::atomic::AtomicU32;

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// A store of messages that several requests ask. Each ask takes some turns of the scheduler.
    #[derive(Default)]
    struct Messages {
        waiting: Waiting,
        there: Mutex<Vec<u32>>,
        asked: AtomicU32,
    }

    impl Messages {
        async fn take(&self) -> Result<Vec<u32>, Infallible> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let found = self.there.lock().unwrap().pop();
            for _ in 0..3 {
                yield_now().await;
            }
            Ok(found.into_iter().collect())
        }

        fn wait(self: &Arc<Self>) -> JoinHandle<Vec<u32>> {
            let of = Arc::clone(self);
            tokio::spawn(async move {
                let ask = || of.take();
                of.waiting.until_any("q", Duration::from_secs(20), ask).await.unwrap()
            })
        }

        fn asked(&self) -> u32 {
            self.asked.load(Ordering::Relaxed)
        }
    }

    /// Lets all tasks run that can.
    async fn settle() {
        for _ in 0..5000 {
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_many_asks_when_there_is_nothing() {
        let messages = Arc::new(Messages::default());
        let requests: Vec<_> = (0..100).map(|_| messages.wait()).collect();
        settle().await;
        // The one that began after all were there answers for them.
        let first = messages.asked();
        assert!(first <= 2, "{first}");
        messages.waiting.wake("q");
        messages.waiting.wake("other");
        settle().await;
        assert_eq!(messages.asked(), first + 1);
        for request in requests {
            assert!(request.await.unwrap().is_empty());
        }
        assert_eq!(messages.asked(), first + 1);
        assert!(messages.waiting.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_came_first_are_served_first() {
        let messages = Arc::new(Messages::default());
        let mut requests: Vec<_> = (0..10).map(|_| messages.wait()).collect();
        settle().await;
        *messages.there.lock().unwrap() = vec![3, 2, 1];
        // One wake: who finds something tells the next.
        messages.waiting.wake("q");
        settle().await;
        let behind = requests.split_off(4);
        assert!(behind.iter().all(|request| !request.is_finished()));
        let mut served = Vec::new();
        for request in requests {
            served.extend(request.await.unwrap());
        }
        assert_eq!(served, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn while_there_are_messages_all_ask_side_by_side() {
        let messages = Arc::new(Messages::default());
        *messages.there.lock().unwrap() = (0..9).collect();
        let _open = messages.waiting.enter("q");
        let first = messages.wait();
        settle().await;
        let others: Vec<_> = (0..8).map(|_| messages.wait()).collect();
        for _ in 0..2 {
            yield_now().await;
        }
        assert_eq!(messages.asked(), 9);
        for request in others.into_iter().chain([first]) {
            assert_eq!(request.await.unwrap().len(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_is_not_lost_with_the_request_that_had_it() {
        let messages = Arc::new(Messages::default());
        let (first, second) = (messages.wait(), messages.wait());
        settle().await;
        messages.there.lock().unwrap().push(1);
        messages.waiting.wake("q");
        first.abort();
        assert_eq!(second.await.unwrap(), [1]);
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

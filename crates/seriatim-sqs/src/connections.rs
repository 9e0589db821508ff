//! The open connections: what each of them is at. When there is no room for another one, or for
//! what another one brings, the slowest is closed: so silent clients hold up nobody.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::memory::{Memory, Taken};

/// The time that a connection has in any case: most requests need less.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at all connections.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The time that a connection may take to close before another one is closed for its place.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);
/// How many connections with small bodies are closed at once.
const SMALL_AT_ONCE: usize = 16;
/// The memory for heads that have not ended.
const HEADS: usize = 64 * 1024 * 1024;

/// How far the request of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is no request, its head is being read, or it is being refused.
    Idle,
    SmallBody,
    LargeBody,
    /// A part of its body waits for memory. The client is not to blame.
    WaitsForMemory,
    /// It is carried out for a client that may ask.
    AtWork,
}

/// A need that there is no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Another connection.
    Place,
    Heads,
    SmallBodies,
    LargeBodies,
    /// Another answer, until others are read.
    Answers,
}

/// The open connections.
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Arc<Mutex<State>>>>,
    next: AtomicU64,
    places: Arc<Semaphore>,
    heads: Arc<Memory>,
    /// The last look at all of them.
    looked: Mutex<Option<Instant>>,
}

/// The state of a connection.
struct State {
    stage: Stage,
    since: Instant,
    /// The bytes that have come since.
    read: u64,
    head: Taken,
    /// Whether it has brought a request of a client that may ask.
    is_known: bool,
    /// The answers that its client has not read, since when there are some, and the bytes that were
    /// written since.
    unread: usize,
    unread_since: Instant,
    written: u64,
    /// Closes it. There is none when it is being closed.
    closes: Option<Arc<Notify>>,
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            next: AtomicU64::new(0),
            places: Arc::new(Semaphore::new(limit)),
            heads: Memory::new(HEADS),
            looked: Mutex::default(),
        })
    }

    /// Waits for a place for another connection.
    pub(crate) async fn open(self: &Arc<Self>) -> Connection {
        let mut wait = Duration::ZERO;
        let permit = loop {
            match timeout(wait, Arc::clone(&self.places).acquire_owned()).await {
                Ok(Ok(permit)) => break Some(permit),
                // It is never closed.
                Ok(Err(_)) => break None,
                Err(_) if self.close_slowest(Need::Place) => wait = CLOSES_WITHIN,
                Err(_) => wait = LOOK_AGAIN,
            }
        };
        let (number, now) = (self.next.fetch_add(1, Ordering::Relaxed), Instant::now());
        let closes = Arc::new(Notify::new());
        let state = Arc::new(Mutex::new(State {
            stage: Stage::Idle,
            since: now,
            read: 0,
            head: self.heads.take(0),
            is_known: false,
            unread: 0,
            unread_since: now,
            written: 0,
            closes: Some(Arc::clone(&closes)),
        }));
        lock(&self.open).insert(number, Arc::clone(&state));
        Connection { connections: Arc::clone(self), number, state, closes, _place: permit }
    }

    /// Closes the slowest connection that has what is needed, unless another one was closed just
    /// before.
    pub(crate) fn make_room(&self, need: Need) {
        let now = Instant::now();
        {
            let mut looked = lock(&self.looked);
            if looked.is_some_and(|looked| now < looked + LOOK_AGAIN) {
                return;
            }
            *looked = Some(now);
        }
        self.close_slowest(need);
    }

    /// Closes the slowest of the connections that have what is needed, if it has had a second; of
    /// small bodies some. Returns whether there was one.
    fn close_slowest(&self, need: Need) -> bool {
        let now = Instant::now();
        let open = lock(&self.open);
        let ranked = open.values().filter_map(|of| Some((lock(of).rank(need, now)?, of)));
        let mut ranked: Vec<_> = ranked.collect();
        let closed = if need == Need::SmallBodies { SMALL_AT_ONCE } else { 1 };
        if ranked.len() > closed {
            ranked.select_nth_unstable_by_key(closed, |(rank, _)| *rank);
        }
        let is_any = !ranked.is_empty();
        for (_, slowest) in ranked.into_iter().take(closed) {
            if let Some(closes) = lock(slowest).closes.take() {
                tracing::debug!(?need, "a slow connection is closed");
                closes.notify_one();
            }
        }
        is_any
    }
}

impl State {
    /// Returns a number that is less for a connection that rather is closed: an unknown client's
    /// first, then that with fewer bytes a second, then that which has had more time. `None` if it
    /// does not have what is needed, or is not to be closed.
    fn rank(&self, need: Need, now: Instant) -> Option<(bool, u64, Reverse<Duration>)> {
        let writes = self.unread > 0;
        let (has_it, since, bytes) = match need {
            Need::Answers => (writes, self.unread_since, self.written),
            Need::Place if writes => (self.stage != Stage::AtWork, self.unread_since, self.written),
            Need::Place => (self.stage != Stage::AtWork, self.since, self.read),
            Need::Heads => (self.stage == Stage::Idle && self.read > 0, self.since, self.read),
            Need::SmallBodies => (self.stage == Stage::SmallBody, self.since, self.read),
            Need::LargeBodies => (self.stage == Stage::LargeBody, self.since, self.read),
        };
        let time = now.saturating_duration_since(since);
        if !has_it || time < PATIENCE || self.closes.is_none() {
            return None;
        }
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Some((self.is_known, bytes.saturating_mul(1000) / milliseconds.max(1), Reverse(time)))
    }
}

/// An open connection. Dropped, its place is free.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
    state: Arc<Mutex<State>>,
    closes: Arc<Notify>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Notes what it is at from now on.
    pub(crate) fn enter(&self, next: Stage) {
        let mut state = lock(&self.state);
        state.is_known |= next == Stage::AtWork;
        (state.stage, state.since, state.read) = (next, Instant::now(), 0);
        state.head.resize(0);
    }

    /// Notes bytes that have come.
    pub(crate) fn read(&self, bytes: usize) {
        let is_head = {
            let mut state = lock(&self.state);
            state.read += bytes as u64;
            let is_head = state.stage == Stage::Idle;
            if is_head {
                let read = usize::try_from(state.read).unwrap_or(usize::MAX);
                state.head.resize(read);
            }
            is_head
        };
        if is_head && self.connections.heads.is_full() {
            self.connections.make_room(Need::Heads);
        }
    }

    /// Notes bytes that the client has taken.
    pub(crate) fn wrote(&self, bytes: usize) {
        lock(&self.state).written += bytes as u64;
    }

    /// Waits until it is to be closed.
    pub(crate) async fn closed(&self) {
        self.closes.notified().await;
    }

    /// Returns the bytes of an answer, which keep its memory until they are written.
    pub(crate) fn answer(self: &Arc<Self>, text: String, memory: Taken) -> Answer {
        let mut state = lock(&self.state);
        if state.unread == 0 {
            (state.unread_since, state.written) = (Instant::now(), 0);
        }
        state.unread += 1;
        drop(state);
        Answer { text, connection: Arc::clone(self), _memory: memory }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.connections.open).remove(&self.number);
    }
}

/// An answer on its way.
pub(crate) struct Answer {
    text: String,
    connection: Arc<Connection>,
    _memory: Taken,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut state = lock(&self.connection.state);
        state.unread -= 1;
        // The client has the time of an idle connection from now on.
        if state.unread == 0 && state.stage == Stage::Idle {
            state.since = Instant::now();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn is_closed(connection: &Connection) -> bool {
        lock(&connection.state).closes.is_none()
    }

    /// Each stage with what it has, and who is closed for it.
    #[tokio::test(start_paused = true)]
    async fn the_slowest_connection_that_has_what_is_needed_is_closed() {
        for (need, stage) in [
            (Need::Place, Stage::Idle),
            (Need::Place, Stage::SmallBody),
            (Need::Heads, Stage::Idle),
            (Need::SmallBodies, Stage::SmallBody),
            (Need::LargeBodies, Stage::LargeBody),
        ] {
            let connections = Connections::new(10);
            let (known, quick) = (connections.open().await, connections.open().await);
            let (slow, works) = (connections.open().await, connections.open().await);
            known.enter(Stage::AtWork);
            for connection in [&known, &quick, &slow] {
                connection.enter(stage);
                connection.read(10);
            }
            quick.read(1000);
            works.enter(Stage::AtWork);
            connections.make_room(need);
            assert!(!is_closed(&slow), "{need:?}: it has a second");
            advance(PATIENCE).await;
            for expected in [[true, false, false], [true, true, false], [true, true, true]] {
                connections.make_room(need);
                advance(LOOK_AGAIN).await;
                let expected = if need == Need::SmallBodies { [true; 3] } else { expected };
                let closed = [&slow, &quick, &known].map(is_closed);
                assert_eq!(closed, expected, "{need:?}");
            }
            assert!(!is_closed(&works), "{need:?}");
        }
    }

    /// The client is not slow: it may have sent all of a small body.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_waits_for_memory_is_not_closed_for_it() {
        let connections = Connections::new(10);
        let waits = connections.open().await;
        waits.enter(Stage::WaitsForMemory);
        advance(PATIENCE).await;
        connections.make_room(Need::SmallBodies);
        assert!(!is_closed(&waits));
        advance(LOOK_AGAIN).await;
        connections.make_room(Need::Place);
        assert!(is_closed(&waits));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_closed_for_the_answers_of_others() {
        let connections = Connections::new(10);
        let answers = Memory::new(100);
        let (reads, silent) =
            (Arc::new(connections.open().await), Arc::new(connections.open().await));
        reads.enter(Stage::AtWork);
        let _one = reads.answer(String::from("one"), answers.take(50));
        let _two = silent.answer(String::from("two"), answers.take(50));
        // The next request of that client does not matter: it does not read.
        silent.enter(Stage::AtWork);
        advance(PATIENCE).await;
        reads.wrote(1000);
        connections.make_room(Need::Answers);
        assert!(is_closed(&silent) && !is_closed(&reads));
        timeout(PATIENCE, silent.closed()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_gets_the_place_of_a_silent_one() {
        let connections = Connections::new(1);
        let silent = Arc::new(connections.open().await);
        let left = Arc::clone(&silent);
        tokio::spawn(async move {
            left.closed().await;
            drop(left);
        });
        drop(silent);
        let begun = Instant::now();
        let second = connections.open().await;
        assert!(begun.elapsed() < 2 * PATIENCE);
        // One whose request is carried out keeps its place.
        second.enter(Stage::AtWork);
        assert!(timeout(10 * PATIENCE, connections.open()).await.is_err());
    }
}

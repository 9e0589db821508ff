//! Memory with a limit: for the heads and bodies that are being read, and for answers until their
//! clients have read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// Time between two tries to make room.
const AGAIN: Duration = Duration::from_millis(100);

/// Memory with a limit. Who begins to use it waits while it is full. Memory in use may grow beyond
/// the limit.
pub(crate) struct Memory {
    limit: usize,
    taken: AtomicUsize,
    freed: Notify,
}

impl Memory {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: AtomicUsize::new(0), freed: Notify::new() })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.limit
    }

    /// Takes memory for what is there already, whether or not there is room.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Taken {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Taken { memory: Arc::clone(self), bytes }
    }

    /// Takes memory when there is room, which `make_room` is asked for now and then.
    pub(crate) async fn begin(self: &Arc<Self>, bytes: usize, make_room: impl Fn()) -> Taken {
        let mut has_waited = false;
        loop {
            if let Some(taken) = self.try_begin(bytes) {
                if has_waited && !self.is_full() {
                    self.freed.notify_one();
                }
                return taken;
            }
            make_room();
            _ = timeout(AGAIN, self.freed.notified()).await;
            has_waited = true;
        }
    }

    /// Takes memory if there is room.
    pub(crate) fn try_begin(self: &Arc<Self>, bytes: usize) -> Option<Taken> {
        let has_room = |taken| (taken < self.limit).then_some(taken + bytes);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, has_room);
        taken.is_ok().then(|| Taken { memory: Arc::clone(self), bytes })
    }
}

/// Memory that is in use. Dropped, it is free.
pub(crate) struct Taken {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Taken {
    /// Takes more, or frees some.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if let Some(more) = bytes.checked_sub(before) {
            self.memory.taken.fetch_add(more, Ordering::Relaxed);
        } else {
            self.memory.taken.fetch_sub(before - bytes, Ordering::Relaxed);
            self.memory.freed.notify_one();
        }
    }

    /// Joins what was taken of the same memory.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn full_memory_is_waited_for_and_asked_for() {
        let memory = Memory::new(10);
        let mut first = memory.begin(4, || panic!("there is room")).await;
        // Data that is there counts, even beyond the limit.
        let second = memory.take(20);
        assert!(memory.is_full());
        let asked = AtomicUsize::new(0);
        let make_room = || _ = asked.fetch_add(1, Ordering::Relaxed);
        let late = timeout(10 * AGAIN, memory.begin(1, make_room)).await;
        assert!(late.is_err());
        assert!(asked.load(Ordering::Relaxed) >= 9);
        first.merge(second);
        let (third, ()) = tokio::join!(memory.begin(1, || {}), async { first.resize(9) });
        drop((first, third));
        assert_eq!(memory.taken.load(Ordering::Relaxed), 0);
    }
}

//! Rows that many requests need, kept for a moment: keys and queues.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

/// How long a row is believed. Another server may change it meanwhile, or a key be removed.
const LIFE: Duration = Duration::from_millis(500);
/// With so many rows, those that are too old are dropped.
const CROWD: usize = 1000;

/// Rows read in the last 500 ms, by name. A row that was not there is read again.
pub(crate) struct Cache<K, V> {
    rows: Mutex<HashMap<K, Row<V>>>,
}

struct Row<V> {
    /// Requests that come while the row is read wait for it.
    value: Arc<OnceCell<Arc<V>>>,
    ends_at: Instant,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { rows: Mutex::default() }
    }
}

impl<K: Hash + Eq + Clone, V> Cache<K, V> {
    /// Returns the row of a name, which is read if it is not known.
    pub(crate) async fn get<E>(
        &self,
        name: K,
        read: impl Future<Output = Result<V, E>>,
    ) -> Result<Arc<V>, E> {
        let value = self.value(name.clone());
        let read = Box::pin(async { read.await.map(Arc::new) });
        let found = value.get_or_try_init(|| read).await.cloned();
        if found.is_err() {
            let mut rows = self.lock();
            // The next read may have begun already.
            if rows.get(&name).is_some_and(|row| Arc::ptr_eq(&row.value, &value)) {
                rows.remove(&name);
            }
        }
        found
    }

    /// Forgets all rows: what is read from now on is what was committed by now.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn value(&self, name: K) -> Arc<OnceCell<Arc<V>>> {
        let (mut rows, now) = (self.lock(), Instant::now());
        if let Some(row) = rows.get(&name)
            && now < row.ends_at
        {
            return Arc::clone(&row.value);
        }
        if rows.len() >= CROWD {
            rows.retain(|_, row| now < row.ends_at);
        }
        // The life begins before the read.
        let row = Row { value: Arc::default(), ends_at: now + LIFE };
        let value = Arc::clone(&row.value);
        rows.insert(name, row);
        value
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Row<V>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_row_is_read_once_in_its_life() {
        let (cache, reads) = (Cache::default(), AtomicU32::new(0));
        let read = async || Ok::<_, ()>(reads.fetch_add(1, Ordering::Relaxed));
        let (first, second) = tokio::join!(cache.get("a", read()), cache.get("a", read()));
        assert_eq!((*first.unwrap(), *second.unwrap()), (0, 0));
        assert_eq!(*cache.get("b", read()).await.unwrap(), 1);
        advance(LIFE.mul_f64(0.9)).await;
        assert_eq!(*cache.get("a", read()).await.unwrap(), 0);
        advance(LIFE.mul_f64(0.2)).await;
        assert_eq!(*cache.get("a", read()).await.unwrap(), 2);
        cache.clear();
        assert_eq!(*cache.get("a", read()).await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_there_is_read_again() {
        let cache = Cache::default();
        assert_eq!(cache.get("a", async { Err::<u32, _>("not there") }).await, Err("not there"));
        assert_eq!(cache.get("a", async { Ok::<_, ()>(7) }).await.map(|row| *row), Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_are_too_old_are_dropped() {
        let cache = Cache::default();
        for name in 0..CROWD {
            cache.get(name, async { Ok::<_, ()>(name) }).await.unwrap();
        }
        advance(LIFE).await;
        cache.get(CROWD, async { Ok::<_, ()>(0) }).await.unwrap();
        assert_eq!(cache.lock().len(), 1);
    }
}

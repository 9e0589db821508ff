//! Waits for rows that another transaction has: by short tries, with no connection between them.
//! So an open transaction cannot use up a pool, whatever waits for it.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{Code, SqsError};

/// How long a request waits in all, before it is refused with 503. SDKs send it again.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause between two tries, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// How long a try waits for a row: the lock timeout of its transaction.
pub(crate) const TRY: &str = "250ms";

/// The requests of a role that wait for other transactions.
pub(crate) struct Patience {
    /// Half of the pool: the other half is for requests that need not wait.
    tries: Semaphore,
    /// The names that are waited for. One request for each tries at a time.
    waited: Mutex<HashMap<String, Weak<Turn<()>>>>,
}

impl Patience {
    pub(crate) fn of(pool: &PgPool) -> Self {
        let half = pool.options().get_max_connections() / 2;
        Self { tries: Semaphore::new(half.max(1) as usize), waited: Mutex::default() }
    }

    /// Returns whether a request waits for one of these. They are computed only if any request
    /// waits for anything: the digest of a body takes a while.
    pub(crate) fn knows(&self, names: impl FnOnce() -> BTreeSet<String>) -> bool {
        if self.waited().is_empty() {
            return false;
        }
        let names = names();
        let waited = self.waited();
        names.iter().any(|name| waited.contains_key(name))
    }

    /// Returns the names that are waited for now.
    fn waited(&self) -> MutexGuard<'_, HashMap<String, Weak<Turn<()>>>> {
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        waited.retain(|_, turn| turn.strong_count() > 0);
        waited
    }

    /// Tries until nothing is locked by others, for 5 s at most. `names` is what the request waits
    /// for. Dropped, it tries no more: a connection is free after the lock timeout of its try.
    ///
    /// # Errors
    /// The error of the last try, or [`Code::Busy`] if the time is over.
    pub(crate) async fn until_free<T, Tried>(
        &self,
        names: &BTreeSet<String>,
        mut once: impl FnMut() -> Tried,
    ) -> Result<T, SqsError>
    where
        Tried: Future<Output = Result<T, SqsError>>,
    {
        let deadline = Instant::now() + LIMIT;
        let turns = timeout_at(deadline, self.turns(names));
        let _turns = turns.await.map_err(|_| SqsError::busy())?;
        let mut pause = FIRST_PAUSE;
        loop {
            let place = timeout_at(deadline, self.tries.acquire()).await;
            let place = place.map_err(|_| SqsError::busy())?;
            let tried = once().await;
            drop(place);
            match tried {
                Err(error) if error.code == Code::Busy && Instant::now() + pause < deadline => {
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(2 * pause);
                }
                tried => return tried,
            }
        }
    }

    /// Waits for the turn at each name. They are in order: no two requests wait for each other.
    async fn turns(&self, names: &BTreeSet<String>) -> Vec<OwnedMutexGuard<()>> {
        let mut taken = Vec::with_capacity(names.len());
        for name in names {
            taken.push(self.turn(name).lock_owned().await);
        }
        taken
    }

    fn turn(&self, name: &str) -> Arc<Turn<()>> {
        let mut waited = self.waited();
        if let Some(turn) = waited.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Turn::new(()));
        waited.insert(name.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sqlx::postgres::PgPoolOptions;
    use tokio::task::yield_now;

    use super::*;

    fn patience(connections: u32) -> Arc<Patience> {
        let pool = PgPoolOptions::new().max_connections(connections);
        Arc::new(Patience::of(&pool.connect_lazy("postgres://localhost").unwrap()))
    }

    fn names(of: &[usize]) -> BTreeSet<String> {
        of.iter().map(ToString::to_string).collect()
    }

    /// Begins requests whose tries never end. Returns how many tries have begun.
    async fn tries(patience: &Arc<Patience>, requests: impl Iterator<Item = usize>) -> usize {
        let begun = Arc::new(AtomicUsize::new(0));
        for name in requests {
            let (patience, begun) = (Arc::clone(patience), Arc::clone(&begun));
            tokio::spawn(async move {
                let once = || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    pending::<Result<Infallible, SqsError>>()
                };
                patience.until_free(&names(&[name]), once).await
            });
        }
        for _ in 0..100 {
            yield_now().await;
        }
        begun.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_a_pool_is_for_requests_that_need_not_wait() {
        assert_eq!(tries(&patience(10), 0..20).await, 5);
        assert_eq!(tries(&patience(1), 0..20).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_tries_for_all_that_wait_for_the_same() {
        let patience = patience(10);
        assert!(!patience.knows(|| unreachable!("nothing is waited for")));
        assert_eq!(tries(&patience, [7; 20].into_iter()).await, 1);
        assert!(patience.knows(|| names(&[6, 7])));
        assert!(!patience.knows(|| names(&[6])));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_five_seconds() {
        let (patience, begun) = (patience(10), Instant::now());
        let busy = || async { Err::<Infallible, _>(SqsError::busy()) };
        let refused = patience.until_free(&names(&[1, 2]), busy).await.unwrap_err();
        assert_eq!(refused.code, Code::Busy);
        assert!((4..=5).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert!(!patience.knows(|| names(&[1, 2])), "nothing is waited for any more");
        // An error that is no lock is not tried again.
        let tried = AtomicUsize::new(0);
        let fails = || async {
            tried.fetch_add(1, Ordering::Relaxed);
            Err::<Infallible, _>(SqsError::no_queue())
        };
        patience.until_free(&names(&[1]), fails).await.unwrap_err();
        assert_eq!(tried.load(Ordering::Relaxed), 1);
    }
}

//! The connections that the processors of this program need of their pools, so that `build()` adds
//! them up.

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sqlx::PgPool;

/// The processors that are built and not stopped. A dropped one is forgotten by the next look.
static NEEDS: Mutex<Vec<Weak<PoolNeed>>> = Mutex::new(Vec::new());

/// The connections that one processor needs of its pool, until this is dropped.
#[derive(Debug)]
pub(crate) struct PoolNeed {
    /// Kept, so that no other pool gets its address.
    pool: PgPool,
    connections: usize,
}

/// All needs of the program, locked: two processors that are built side by side see each other.
pub(crate) struct PoolNeeds(MutexGuard<'static, Vec<Weak<PoolNeed>>>);

impl PoolNeeds {
    pub(crate) fn lock() -> Self {
        // Nothing panics under the lock.
        Self(NEEDS.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what the processors on `pool` need together. Clones of a pool are one pool.
    pub(crate) fn of(&self, pool: &PgPool) -> usize {
        let needs = self.0.iter().filter_map(Weak::upgrade);
        // A pool's options are in what its clones share.
        let same = needs.filter(|need| ptr::eq(need.pool.options(), pool.options()));
        same.fold(0, |sum, need| sum.saturating_add(need.connections))
    }

    pub(crate) fn add(&mut self, pool: PgPool, connections: usize) -> Arc<PoolNeed> {
        self.0.retain(|need| need.strong_count() > 0);
        let need = Arc::new(PoolNeed { pool, connections });
        self.0.push(Arc::downgrade(&need));
        need
    }
}

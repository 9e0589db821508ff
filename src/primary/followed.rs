//! Which options belong to pools that follow a primary.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use sqlx::postgres::PgConnectOptions;

static FOLLOWED: Mutex<Vec<Weak<PgConnectOptions>>> = Mutex::new(Vec::new());

/// Notes that the pool of these options follows a primary.
pub(super) fn note(options: &Arc<PgConnectOptions>) {
    // Nothing panics under the lock.
    let mut followed = FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner);
    followed.retain(|noted| noted.strong_count() > 0);
    followed.push(Arc::downgrade(options));
}

/// Returns whether the pool of these options follows a primary. All servers that it leads to are of
/// one cluster: a claim that a promotion has kept is the same on the next one. It gives nobody a
/// connection to an earlier one.
pub(crate) fn is_followed(options: &Arc<PgConnectOptions>) -> bool {
    let followed = FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner);
    followed.iter().any(|noted| std::ptr::eq(noted.as_ptr(), Arc::as_ptr(options)))
}

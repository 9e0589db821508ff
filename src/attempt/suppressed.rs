//! The calls that a rehearsed job made, and that wrote nothing.

use std::sync::{Mutex, PoisonError};

/// The calls of a rehearsed job that would have written beside its transaction.
#[derive(Default)]
pub(crate) struct Suppressed(Mutex<Vec<String>>);

impl Suppressed {
    pub(crate) fn note(&self, call: String) {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

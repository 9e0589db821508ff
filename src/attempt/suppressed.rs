//! The calls of a handler that would have written beside its transaction, and wrote nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::Report;

/// The calls of a job that is rehearsed, or that a test runs without a database.
#[derive(Default)]
pub(crate) struct Suppressed {
    is_rehearsal: bool,
    noted: Mutex<Noted>,
}

/// The suppressed calls of a job.
#[derive(Default)]
pub(crate) struct Noted {
    /// In words.
    pub(crate) calls: Vec<String>,
    /// The last progress and the last checkpoint.
    #[cfg_attr(not(feature = "testing"), allow(dead_code))] // Only a test reads them.
    pub(crate) report: Report,
}

impl Suppressed {
    pub(crate) fn of_rehearsal() -> Self {
        Self { is_rehearsal: true, ..Self::default() }
    }

    pub(crate) fn is_rehearsal(&self) -> bool {
        self.is_rehearsal
    }

    pub(crate) fn note(&self, call: String) {
        self.noted().calls.push(call);
    }

    pub(crate) fn note_progress(&self, percent: u8, message: &str) {
        self.noted().report.progress = Some((percent, message.to_owned()));
    }

    pub(crate) fn note_checkpoint(&self, json: &Arc<str>) {
        self.noted().report.checkpoint = Some(Arc::clone(json));
    }

    pub(crate) fn take(&self) -> Noted {
        std::mem::take(&mut *self.noted())
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        // Nothing panics under the lock.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The count of background errors.

use crate::error::BackgroundError;
use crate::metrics::facade::{ENABLED, counter};
use crate::metrics::names::BACKGROUND_ERRORS;

/// Counts an error that no caller gets.
pub(crate) fn record_error(error: &BackgroundError) {
    if ENABLED {
        counter(&BACKGROUND_ERRORS, &[("source", error.source_word())]).increment(1);
    }
}

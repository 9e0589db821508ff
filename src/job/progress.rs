//! How far a job is: what its handler reports, and its bounds. Pure.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::error::ProgressError;
use crate::job::json::{DEPTH_LIMIT, depth, has_nul};

/// Bounds the message of a progress, in characters: a longer one is cut.
pub(crate) const MESSAGE_LIMIT: usize = 400;
/// Bounds a checkpoint, in bytes of JSON: it is written again and again.
pub(crate) const CHECKPOINT_LIMIT: usize = 64 * 1024;
/// The most that a progress can be.
pub(crate) const MAX_PERCENT: u8 = 100;

/// How far a job is, as its handler or its receiver reported it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// How much of the work is done: 0 to 100.
    pub percent: u8,
    /// The words of the handler; may be empty.
    pub message: String,
    /// When it was written, by the database's clock.
    pub at: DateTime<Utc>,
}

impl Progress {
    /// Returns a progress of the database; `None` if there is none.
    pub(crate) fn new(
        percent: Option<i32>,
        message: Option<String>,
        at: Option<DateTime<Utc>>,
    ) -> Option<Self> {
        let percent = u8::try_from(percent?).unwrap_or(MAX_PERCENT);
        Some(Self { percent, message: message.unwrap_or_default(), at: at? })
    }
}

/// As in `40 %, page 4 of 10`.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.percent)?;
        let words = self.message.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.is_empty() { Ok(()) } else { write!(f, ", {words}") }
    }
}

/// Returns a checkpoint as JSON that `jsonb` can hold.
pub(crate) fn checkpoint_json<T: Serialize + ?Sized>(
    checkpoint: &T,
) -> Result<String, ProgressError> {
    let refused = |reason: String| Err(ProgressError::Serialize { reason });
    let json = match serde_json::to_string(checkpoint) {
        Ok(json) => json,
        Err(error) => return refused(error.to_string()),
    };
    if json.len() > CHECKPOINT_LIMIT {
        return Err(ProgressError::TooLarge { size: json.len(), limit: CHECKPOINT_LIMIT });
    }
    if has_nul(&json) {
        return refused("it has a NUL character in a string".to_owned());
    }
    if depth(&json) > DEPTH_LIMIT {
        return refused(format!("it is nested deeper than {DEPTH_LIMIT} levels"));
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_progress_prints_in_one_line() {
        let at = Utc::now();
        let shown = |message: &str| Progress { percent: 40, message: message.into(), at };
        assert_eq!(shown("page 4\n of 10 ").to_string(), "40 %, page 4 of 10");
        assert_eq!(shown(" ").to_string(), "40 %");
        assert_eq!(Progress::new(None, None, Some(at)), None);
    }
}

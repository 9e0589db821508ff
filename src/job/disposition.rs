//! How a claimed job goes on. Pure.

use chrono::{DateTime, Utc};

/// How a claimed job goes on. All but `Run` end by the ordinary settle, without a new attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Its attempt was begun.
    Run,
    /// Its attempts were used up before: its workers died.
    Exhausted,
    /// It has expired.
    Expired(DateTime<Utc>),
    /// It is older than the queue's workers accept.
    Ignored,
    /// A cancel is requested.
    Cancelled,
}

impl Disposition {
    /// Reads the word that the schema's functions use.
    pub(crate) fn parse(word: &str, expires_at: Option<DateTime<Utc>>) -> Self {
        match (word, expires_at) {
            ("exhausted", _) => Self::Exhausted,
            ("expired", Some(at)) => Self::Expired(at),
            ("ignored", _) => Self::Ignored,
            ("cancelled", _) => Self::Cancelled,
            _ => Self::Run,
        }
    }
}

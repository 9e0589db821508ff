//! Why a history cannot be read.

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The line could not be read, or the file could not be opened.
    #[error("line {line} cannot be read")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Why.
        source: std::io::Error,
    },
    /// The line is no event.
    #[error("line {line} is no event")]
    Event {
        /// Its number, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// The event cannot have been.
    #[error("line {line}: {what}")]
    Sense {
        /// Its number, from 1.
        line: usize,
        /// Why.
        what: String,
    },
    /// The events do not fit together.
    #[error("{0}")]
    Whole(String),
}

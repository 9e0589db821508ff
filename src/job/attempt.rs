//! The number of an attempt, and how many there may be.

use std::fmt;

use serde::Serialize;

/// The number of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AttemptInfo {
    /// The number, from 1; 0: none has begun.
    pub attempt: u32,
    /// The number of attempts up to this one that count towards the limit. Released attempts
    /// do not, nor do all before a retry or a redrive.
    pub counted: u32,
    /// The limit of attempts that count, if it is known; `None`: the queue's workers have it.
    pub of: Option<u32>,
}

impl AttemptInfo {
    /// Returns the last attempt of a job that has begun `attempts`, of which `forgiven` do not
    /// count towards `max_attempts`.
    pub fn new(attempts: u32, forgiven: u32, max_attempts: Option<u32>) -> Self {
        Self { attempt: attempts, counted: attempts.saturating_sub(forgiven), of: max_attempts }
    }
}

impl fmt::Display for AttemptInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempt, counted, of } = self;
        write!(f, "attempt {attempt}")?;
        match of {
            Some(of) if counted == attempt => write!(f, " of {of}"),
            Some(of) => write!(f, ", {counted} of {of} that count"),
            None => Ok(()),
        }
    }
}

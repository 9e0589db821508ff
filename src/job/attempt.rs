//! The number of an attempt, and how many there may be.

use std::fmt;

use serde::Serialize;

/// The number of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AttemptInfo {
    /// The number, from 1.
    pub attempt: u32,
    /// The limit, with the attempts that do not count included, if it is known; `None`: the queue's
    /// workers have it.
    pub of: Option<u32>,
}

impl AttemptInfo {
    /// Returns the last attempt of a job that has begun `attempts`, of which `forgiven` do not
    /// count towards `max_attempts`.
    pub fn new(attempts: u32, forgiven: u32, max_attempts: Option<u32>) -> Self {
        Self { attempt: attempts, of: max_attempts.map(|limit| limit.saturating_add(forgiven)) }
    }
}

impl fmt::Display for AttemptInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {}", self.attempt)?;
        self.of.map_or(Ok(()), |of| write!(f, " of {of}"))
    }
}

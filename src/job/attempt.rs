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
            // A queue of SQS clients without a `RedrivePolicy` has no other limit.
            Some(of) if *of >= i32::MAX as u32 => Ok(()),
            Some(of) if counted == attempt => write!(f, " of {of}"),
            Some(of) => write!(f, ", {counted} of {of} that count"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AttemptInfo;

    #[test]
    fn a_limit_that_nobody_reaches_is_not_shown() {
        let shown = |attempts, of| AttemptInfo::new(attempts, 1, of).to_string();
        assert_eq!(shown(3, Some(5)), "attempt 3, 2 of 5 that count");
        assert_eq!(shown(3, Some(2_147_483_647)), "attempt 3");
        assert_eq!(AttemptInfo::new(1, 0, Some(5)).to_string(), "attempt 1 of 5");
    }
}

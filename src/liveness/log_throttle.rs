//! Keeps repeated background errors from flooding the log: one line at once, then at most one a
//! minute for each cause, with the number of those that were left out.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::BackgroundError;

/// Time between two lines of one cause.
const AGAIN: Duration = Duration::from_mins(1);
/// Bounds the causes that are remembered. Further causes count as one for each kind of error.
const CAUSES: usize = 256;

/// A kind of error, and its queue and code.
type Cause = (Discriminant<BackgroundError>, String);

#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    causes: Mutex<HashMap<Cause, Said>>,
}

#[derive(Debug, Clone, Copy)]
struct Said {
    at: Instant,
    left_out: u64,
}

impl LogThrottle {
    /// Returns the number of errors of this cause that were left out before, if this one is to be
    /// logged.
    pub(crate) fn admit(&self, error: &BackgroundError, now: Instant) -> Option<u64> {
        // Nothing panics under the lock.
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        if causes.len() >= CAUSES {
            causes.retain(|_, said| now < said.at + AGAIN);
        }
        let mut cause = (discriminant(error), error.cause());
        if causes.len() >= CAUSES && !causes.contains_key(&cause) {
            cause.1 = String::from("(others)");
        }
        match causes.get_mut(&cause) {
            Some(said) if now < said.at + AGAIN => {
                said.left_out += 1;
                None
            }
            Some(said) => Some(std::mem::replace(said, Said { at: now, left_out: 0 }).left_out),
            None => {
                causes.insert(cause, Said { at: now, left_out: 0 });
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(queue: &str) -> BackgroundError {
        BackgroundError::Claim { queue: queue.to_owned(), source: sqlx::Error::PoolClosed }
    }

    #[test]
    fn a_cause_is_told_at_once_and_then_once_a_minute_with_the_count() {
        let (throttle, now) = (LogThrottle::default(), Instant::now());
        let soon = now + Duration::from_secs(59);
        assert_eq!(throttle.admit(&claim("q"), now), Some(0));
        assert_eq!(throttle.admit(&claim("q"), now), None);
        assert_eq!(throttle.admit(&claim("q"), soon), None);
        let presence = BackgroundError::Presence(sqlx::Error::PoolClosed);
        for other in [claim("r"), presence] {
            assert_eq!(throttle.admit(&other, soon), Some(0), "{other}");
        }
        assert_eq!(throttle.admit(&claim("q"), now + AGAIN), Some(2));
        assert_eq!(throttle.admit(&claim("q"), now + AGAIN), None);
    }

    #[test]
    fn another_code_is_another_cause_and_many_causes_are_bounded() {
        let (throttle, now) = (LogThrottle::default(), Instant::now());
        assert_eq!(throttle.admit(&claim("q"), now), Some(0));
        let source = sqlx::Error::PoolTimedOut;
        let other = BackgroundError::Claim { queue: String::from("q"), source };
        assert_eq!(throttle.admit(&other, now), Some(0));
        let lines = (0..1_000).filter_map(|n| throttle.admit(&claim(&n.to_string()), now)).count();
        assert!(lines <= CAUSES, "{lines}");
    }
}

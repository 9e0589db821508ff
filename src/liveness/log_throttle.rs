//! Keeps repeated background errors from flooding the log and the error hook. The log gets one line
//! at once, then at most one a minute for each cause, with the number of those that were left out.
//! The hook gets a state that lasts, such as a server that is away, at once, then after 1, 2, 4 and
//! each further 8 s.

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

/// The pauses between two calls of the hook for one state: the first, and the longest.
const CALLED_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// A state that nothing has reported for so long is over.
const OVER: Duration = Duration::from_secs(4);

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

/// The calls of the error hook.
#[derive(Debug, Default)]
pub(crate) struct HookThrottle {
    states: Mutex<HashMap<(&'static str, String), Called>>,
}

#[derive(Debug, Clone, Copy)]
struct Called {
    /// When it was last reported.
    reported: Instant,
    /// The hook is not called again before.
    again: Instant,
    pause: Duration,
}

impl HookThrottle {
    /// Returns whether the hook is called.
    pub(crate) fn admit(&self, error: &BackgroundError, now: Instant) -> bool {
        let Some(state) = error.state() else { return true };
        // Nothing panics under the lock.
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = |called: &Called| now < called.again.max(called.reported + OVER);
        if states.len() >= CAUSES {
            states.retain(|_, called| lasts(called));
        }
        let state = (error.source_word(), state);
        match states.get_mut(&state) {
            Some(called) if now < called.reported + OVER => {
                called.reported = now;
                if now < called.again {
                    return false;
                }
                called.pause = (called.pause * 2).min(CALLED_AGAIN.1);
                called.again = now + called.pause;
            }
            _ => {
                let pause = CALLED_AGAIN.0;
                states.insert(state, Called { reported: now, again: now + pause, pause });
            }
        }
        true
    }
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
    fn the_hook_gets_a_state_that_lasts_ever_less_often() {
        let (throttle, begun) = (HookThrottle::default(), Instant::now());
        let presence = || BackgroundError::Presence(sqlx::Error::PoolClosed);
        let at = |ms| begun + Duration::from_millis(ms);
        let called: Vec<u64> =
            (0..30_000).step_by(100).filter(|ms| throttle.admit(&presence(), at(*ms))).collect();
        assert_eq!(called, [0, 1_000, 3_000, 7_000, 15_000, 23_000]);
        assert!(!throttle.admit(&presence(), at(30_500)));
        assert!(throttle.admit(&presence(), at(34_500)), "another time");
    }

    #[test]
    fn the_hook_gets_one_call_for_all_queues_of_a_server_that_is_away_and_each_of_a_job() {
        let (throttle, now) = (HookThrottle::default(), Instant::now());
        let away = |queue: u32| BackgroundError::Connection {
            queue: queue.to_string(),
            source: sqlx::Error::PoolTimedOut,
        };
        assert_eq!((0..100).filter(|queue| throttle.admit(&away(*queue), now)).count(), 1);
        let lost = |job| BackgroundError::HoldLost { queue: String::from("q"), job };
        assert!((0..100).all(|_| throttle.admit(&lost(7), now)));
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

//! When a failed job is tried again.

use std::time::Duration;

/// Exponential backoff with jitter and a cap.
///
/// After the n-th failed attempt the job waits `base * factor^(n-1)`, at most `cap`, less a random
/// share of up to `jitter`. The job keeps its place: the rest of its group waits with it.
///
/// ```
/// # use std::time::Duration;
/// use seriatim::RetryPolicy;
///
/// let policy = RetryPolicy::new(5).base(Duration::from_secs(2)).jitter(0.0);
/// assert_eq!(policy.delay(3, 0.5), Duration::from_secs(8));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    pub(crate) max_attempts: u32,
    pub(crate) base: Duration,
    pub(crate) factor: f64,
    pub(crate) cap: Duration,
    pub(crate) jitter: f64,
}

impl RetryPolicy {
    /// Returns a policy of at most `max_attempts` runs (the first one counts): base 1 s, factor 2,
    /// cap 10 min, jitter 0.2.
    pub fn new(max_attempts: u32) -> Self {
        Self {
            max_attempts,
            base: Duration::from_secs(1),
            factor: 2.0,
            cap: DEFAULT_CAP,
            jitter: 0.2,
        }
    }

    /// Sets the wait after the first failure. Default 1 s.
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the factor by which each further failure multiplies the wait; at least 1. Default 2.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Bounds the wait. Default 10 min.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets the largest share of the wait that chance takes off, from 0 (none) to 1. Default 0.2.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns the wait after the `attempt`-th failure (from 1). `chance` is a random number from 0
    /// to 1.
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let steps = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.base.as_secs_f64() * self.factor.powi(steps);
        // `min` also turns the infinity and NaN of absurd settings into the cap.
        let seconds = seconds.min(self.cap.as_secs_f64()) * (1.0 - self.jitter * chance);
        Duration::try_from_secs_f64(seconds).unwrap_or(self.cap)
    }

    /// Returns the mistakes: (setting, value, allowed range) each.
    pub(crate) fn mistakes(&self) -> Vec<(&'static str, String, &'static str)> {
        let Self {
            max_attempts,
            base: _, // Whatever it is, the cap is above it.
            factor,
            cap,
            jitter,
        } = self;
        let mut found = Vec::new();
        if *max_attempts == 0 || *max_attempts > i32::MAX as u32 {
            let range = "1 to 2147483647";
            found.push(("retry.max_attempts", max_attempts.to_string(), range));
        }
        if !(*factor >= 1.0 && factor.is_finite()) {
            found.push(("retry.factor", factor.to_string(), "1 or more"));
        }
        if !(0.0..=1.0).contains(jitter) {
            found.push(("retry.jitter", jitter.to_string(), "0 to 1"));
        }
        if *cap > MAX_DELAY {
            found.push(("retry.cap", format!("{cap:?}"), "at most 100 years"));
        }
        found
    }
}

/// Bounds the waits of a policy that names no cap.
pub(crate) const DEFAULT_CAP: Duration = Duration::from_mins(10);

/// Bounds every delay: 100 years, far inside what `timestamptz` and `i64` milliseconds hold.
pub(crate) const MAX_DELAY: Duration = Duration::from_hours(100 * 366 * 24);

impl Default for RetryPolicy {
    /// Returns 10 attempts with the defaults of [`RetryPolicy::new`]: 7 to 8.5 minutes of waits in
    /// all.
    fn default() -> Self {
        Self::new(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_the_cap_and_jitter_only_shortens_it() {
        let policy = RetryPolicy::new(3).cap(Duration::from_secs(5)).jitter(0.5);
        let waits: Vec<_> = (1..=5).map(|n| policy.delay(n, 0.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        assert_eq!(policy.delay(3, 1.0), Duration::from_secs(2));
        assert_eq!(policy.delay(u32::MAX, 0.0), Duration::from_secs(5));
    }

    #[test]
    fn absurd_settings_are_named() {
        let named = |policy: RetryPolicy| -> Vec<_> {
            policy.mistakes().into_iter().map(|found| found.0).collect()
        };
        let all = RetryPolicy::new(0).factor(0.5).jitter(1.1);
        let all = named(all.cap(Duration::MAX));
        let expected = ["retry.max_attempts", "retry.factor", "retry.jitter", "retry.cap"];
        assert_eq!(all, expected);
        assert_eq!(named(RetryPolicy::new(1).factor(f64::NAN)), [expected[1]]);
        assert!(named(RetryPolicy::new(1)).is_empty());
    }
}

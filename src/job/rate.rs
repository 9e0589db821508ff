//! The rate of a queue: how many jobs may start in a time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::interval::Interval;
use crate::job::json::seconds;
use crate::job::retry::MAX_DELAY;

/// How many jobs of a queue may start in a time, over the whole fleet:
/// `Rate::per_second(10).burst(20)`.
///
/// Each start counts: also of a retry, of a job that was snoozed, and of one that is taken over.
/// Starts keep an interval (0.1 s at 10 a second). After a pause, as many as [`burst`](Self::burst)
/// says may start at once. No span of time has more starts than its part of the rate, the burst and
/// one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    starts: u32,
    #[serde(rename = "per_s", serialize_with = "seconds")]
    per: Duration,
    burst: Option<u32>,
}

impl Rate {
    /// The most starts a second that a rate may allow.
    pub const MAX_PER_SECOND: u32 = 100_000;

    /// Returns a rate of `starts` in each span of `per`: 1 or more, and 1 ms to 100 years in whole
    /// milliseconds. At most [`MAX_PER_SECOND`](Self::MAX_PER_SECOND) a second.
    pub fn new(starts: u32, per: Duration) -> Self {
        Self { starts, per, burst: None }
    }

    /// Returns a rate of so many starts a second.
    pub fn per_second(starts: u32) -> Self {
        Self::new(starts, Duration::from_secs(1))
    }

    /// Returns a rate of so many starts a minute.
    pub fn per_minute(starts: u32) -> Self {
        Self::new(starts, Duration::from_mins(1))
    }

    /// Returns a rate of so many starts an hour.
    pub fn per_hour(starts: u32) -> Self {
        Self::new(starts, Duration::from_hours(1))
    }

    /// Sets how many jobs may start at once, if none has started for long enough. 1 or more.
    /// Default: the starts of a tenth of a second, and at least 1.
    pub fn burst(mut self, starts: u32) -> Self {
        self.burst = Some(starts);
        self
    }

    /// Returns how many starts there are in each span of [`per`](Self::per).
    pub fn starts(self) -> u32 {
        self.starts
    }

    /// Returns the span of time in which [`starts`](Self::starts) jobs may start.
    pub fn per(self) -> Duration {
        self.per
    }

    /// Returns how many jobs may start at once; `None`: the default, where it was not stored yet.
    pub fn burst_size(self) -> Option<u32> {
        self.burst
    }

    /// Returns a rate as the database has it; `None` if it has none.
    pub(crate) fn stored(starts: Option<i32>, per_ms: Option<i64>) -> Option<Self> {
        let per = Duration::from_millis(per_ms?.unsigned_abs());
        Some(Self::new(starts?.unsigned_abs(), per))
    }

    /// Returns (setting, value, range) of a number that is out of range.
    pub(crate) fn mistake(self) -> Option<(&'static str, String, &'static str)> {
        const COUNT: &str = "1 to 2147483647";
        let is_count = |n: u32| n > 0 && i32::try_from(n).is_ok();
        let ms = self.per.as_millis();
        if !is_count(self.starts) {
            Some(("rate", self.starts.to_string(), COUNT))
        } else if let Some(burst) = self.burst.filter(|burst| !is_count(*burst)) {
            Some(("rate_burst", burst.to_string(), COUNT))
        } else if ms == 0 || self.per > MAX_DELAY {
            Some(("rate_per", format!("{:?}", self.per), "1 ms to 100 years"))
        } else if u128::from(self.starts) * 1000 > ms * u128::from(Self::MAX_PER_SECOND) {
            Some(("rate", self.to_string(), "at most 100000 starts a second"))
        } else {
            None
        }
    }
}

/// As `10 in 1 s`: with its burst, if it has one.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per.as_millis() {
            1000 => write!(f, "{} a second", self.starts)?,
            60_000 => write!(f, "{} a minute", self.starts)?,
            3_600_000 => write!(f, "{} an hour", self.starts)?,
            _ => write!(f, "{} in {:?}", self.starts, self.per)?,
        }
        self.burst.map_or(Ok(()), |burst| write!(f, ", {burst} at once"))
    }
}

/// A [`Rate`] as the database has it, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct StoredRate {
    rate: Option<u32>,
    rate_per: Option<Interval>,
    rate_burst: Option<u32>,
}

impl StoredRate {
    /// Returns what it says; `None` if nothing is stored.
    pub(crate) fn rate(self) -> Option<Rate> {
        Some(Rate { starts: self.rate?, per: self.rate_per?.0, burst: self.rate_burst })
    }
}

impl From<Option<Rate>> for StoredRate {
    fn from(rate: Option<Rate>) -> Self {
        rate.map_or_else(Self::default, |Rate { starts, per, burst }| Self {
            rate: Some(starts),
            rate_per: Some(Interval(per)),
            rate_burst: burst,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_cannot_be_are_named() {
        for (rate, setting) in [
            (Rate::per_second(0), "rate"),
            (Rate::per_second(1).burst(0), "rate_burst"),
            (Rate::new(1, Duration::from_micros(10)), "rate_per"),
            (Rate::new(101, Duration::from_millis(1)), "rate"),
        ] {
            assert_eq!(rate.mistake().unwrap().0, setting, "{rate}");
        }
        for rate in [Rate::per_second(100_000), Rate::per_hour(1), Rate::per_minute(7).burst(9)] {
            assert_eq!(rate.mistake(), None);
            assert_eq!(StoredRate::from(Some(rate)).rate(), Some(rate));
        }
        assert_eq!(Rate::per_minute(7).burst(9).to_string(), "7 a minute, 9 at once");
        assert_eq!(Rate::new(7, Duration::from_secs(15)).to_string(), "7 in 15s");
    }
}

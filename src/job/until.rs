//! The end of a pause or a rest.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::job::words::{clock_time, span};

/// The end of a pause or a rest: a [`Duration`] from now, by the database's clock, or a time.
/// Methods that take one take `impl Into<Until>`.
///
/// ```
/// use std::time::Duration;
/// use seriatim::Until;
///
/// assert_eq!(Until::from(Duration::from_secs(90)).to_string(), "90 s from now");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// So long after the call, by the database's clock.
    After(Duration),
    /// At a time, by the database's clock.
    At(DateTime<Utc>),
}

impl Until {
    /// Returns the two arguments of a statement, of which one is null: a time, or milliseconds.
    pub(crate) fn arguments(self) -> (Option<DateTime<Utc>>, Option<i64>) {
        match self {
            Self::After(time) => (None, Some(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))),
            Self::At(time) => (Some(time), None),
        }
    }
}

impl From<Duration> for Until {
    fn from(time: Duration) -> Self {
        Self::After(time)
    }
}

impl From<DateTime<Utc>> for Until {
    fn from(time: DateTime<Utc>) -> Self {
        Self::At(time)
    }
}

/// As `90 s from now`, or as a time in UTC.
impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(time) => write!(f, "{} from now", span(*time)),
            Self::At(time) => f.write_str(&clock_time(time)),
        }
    }
}

//! Values of arguments: lengths of time, times, policies, and the word `default`.

use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Utc};
use seriatim::admin::Rate;
use seriatim::{AfterHalt, OutOfAttempts};
use seriatim_sqs::MessageId;

/// A value, or the word `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrDefault<T> {
    Value(T),
    Default,
}

impl<T> OrDefault<T> {
    pub(crate) fn into_option(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Default => None,
        }
    }
}

impl<T: FromStr> FromStr for OrDefault<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "default" { Ok(Self::Default) } else { text.parse().map(Self::Value) }
    }
}

/// A job, as its id or its message's names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOrMessage {
    Job(i64),
    Message(MessageId),
}

impl JobOrMessage {
    /// Returns the id of the job that is named.
    pub(crate) fn job(self) -> i64 {
        match self {
            Self::Job(job) => job,
            Self::Message(message) => message.job(),
        }
    }
}

impl FromStr for JobOrMessage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let message = || text.parse().map(Self::Message);
        text.parse().map(Self::Job).or_else(|_| message()).map_err(|_| {
            String::from(
                "it takes the id of a job, such as 4711, or that of a message, such as \
                 00063d1f-4a2b-8c00-8000-000000001267",
            )
        })
    }
}

/// A length of time, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        duration(text).map(Self)
    }
}

/// A rate, as an argument: `10/s`, `600/min`, `5/15s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateOf(pub(crate) Rate);

impl FromStr for RateOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mistake = || format!("{text:?} is no rate: write 10/s, 600/min, 5/15s or 100/h");
        let (starts, per) = text.split_once('/').ok_or_else(mistake)?;
        let per = match per {
            "s" | "ms" | "m" | "min" | "h" | "d" => format!("1{}", per.replace("min", "m")),
            _ => per.to_owned(),
        };
        let starts = starts.trim().parse().map_err(|_| mistake())?;
        Ok(Self(Rate::new(starts, duration(&per).map_err(|_| mistake())?)))
    }
}

/// The policy for a job that is out of attempts, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy(pub(crate) OutOfAttempts);

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let halt_for = || {
            let (time, then) = text.strip_prefix("halt:")?.split_once(':')?;
            let then = match then {
                "park" => AfterHalt::Park,
                "continue" => AfterHalt::Continue,
                _ => return None,
            };
            Some(OutOfAttempts::HaltFor { deadline: duration(time).ok()?, then })
        };
        let policy = match text {
            "continue" => Some(OutOfAttempts::Continue),
            "halt" => Some(OutOfAttempts::Halt),
            "park" => Some(OutOfAttempts::Park),
            _ => halt_for(),
        };
        policy.map(Self).ok_or_else(|| {
            String::from("the policies are continue, halt, park, halt:1h:park and halt:1h:continue")
        })
    }
}

/// Reads a length of time: `90`, `90s`, `500ms`, `5m`, `2h`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let mistake = || format!("{text:?} is no length of time, such as 90s, 500ms, 5m, 2h or 1d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| mistake())?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    let time = match unit.trim() {
        "ms" => Some(Duration::from_millis(number)),
        "" | "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    };
    time.ok_or_else(mistake)
}

/// Reads a time. A day begins at midnight in UTC; tables print times as they can be given here.
pub(crate) fn time(text: &str) -> Result<DateTime<Utc>, String> {
    let given = DateTime::parse_from_rfc3339(text).map(|time| time.to_utc());
    let day = || NaiveDate::from_str(text).map(|day| day.and_time(NaiveTime::MIN).and_utc());
    let shown = || NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S UTC");
    let time = given.or_else(|_| day()).or_else(|_| shown().map(|time| time.and_utc()));
    time.map_err(|_| {
        String::from("it takes a time as 2026-11-24T03:00:00Z, or a day in UTC as 2026-11-24")
    })
}

/// Reads a time, or how long ago it is.
pub(crate) fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = time(text) {
        return Ok(time);
    }
    let ago = duration(text).ok().and_then(|age| chrono::Duration::from_std(age).ok());
    ago.and_then(|age| Utc::now().checked_sub_signed(age)).ok_or_else(|| {
        String::from(
            "it takes a time as 2026-11-24T03:00:00Z, a day in UTC as 2026-11-24, or how long ago \
             as 90s, 5m, 2h or 1d",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seriatim::admin::Rate;
    use seriatim::{AfterHalt, OutOfAttempts};

    use super::{Policy, RateOf, duration, moment};

    #[test]
    fn a_policy_may_have_a_deadline() {
        let deadline = Duration::from_hours(1);
        let halt = OutOfAttempts::HaltFor { deadline, then: AfterHalt::Park };
        assert_eq!("halt:1h:park".parse(), Ok(Policy(halt)));
        assert_eq!("halt".parse(), Ok(Policy(OutOfAttempts::Halt)));
        for wrong in ["", "stop", "halt:", "halt:1h", "halt:1h:stop", "halt:x:park"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rate_names_jobs_and_a_time() {
        assert_eq!("10/s".parse(), Ok(RateOf(Rate::per_second(10))));
        assert_eq!("600/min".parse(), Ok(RateOf(Rate::per_minute(600))));
        assert_eq!("5/15s".parse(), Ok(RateOf(Rate::new(5, Duration::from_secs(15)))));
        for wrong in ["", "10", "/s", "10/", "x/s", "10/fortnight", "-1/s"] {
            assert!(wrong.parse::<RateOf>().unwrap_err().contains("600/min"), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_several_forms() {
        let time = moment("2026-11-24T03:00:00Z").unwrap();
        for same in ["2026-11-24T04:00:00+01:00", "2026-11-24 03:00:00 UTC"] {
            assert_eq!(moment(same), Ok(time), "{same}");
        }
        assert_eq!(moment("2026-11-24"), Ok(time - chrono::Duration::hours(3)));
        let ago = chrono::Utc::now() - moment("2h").unwrap();
        assert!((7_190..7_260).contains(&ago.num_seconds()), "{ago}");
        for wrong in ["", "yesterday", "2026-13-01", "24.11.2026", "-2h"] {
            assert!(moment(wrong).unwrap_err().contains("2026-11-24"), "{wrong}");
        }
    }

    #[test]
    fn a_length_of_time_has_a_unit() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
        assert_eq!(duration("2h"), Ok(Duration::from_hours(2)));
        assert_eq!(duration("1d"), Ok(Duration::from_hours(24)));
        for wrong in
            ["", "s", "-1s", "1 fortnight", "1.5h", "99999999999999999999", "213503982334602d"]
        {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}

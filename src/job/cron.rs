//! Times by a cron expression in a time zone.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

/// The number of fields of an expression.
const FIELDS: usize = 5;

/// A mistake in an expression or its zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CronMistake {
    Spec(String),
    Zone,
}

/// The times of a cron expression.
///
/// A fixed time (`30 2 * * *`) in the hour that the clock leaves out comes right behind that hour,
/// and in an hour that the clock repeats once. A wildcard (`*/30 * * * *`) follows the clock.
#[derive(Debug, Clone)]
pub(crate) struct CronTimes {
    cron: Cron,
    zone: Tz,
}

impl CronTimes {
    pub(crate) fn new(spec: &str, zone: &str) -> Result<Self, CronMistake> {
        let fields = spec.split_whitespace().count();
        if fields > FIELDS {
            return Err(CronMistake::Spec(format!(
                "it has {fields} fields, and seconds and years are none of them"
            )));
        }
        let parser =
            CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(spec).map_err(|error| CronMistake::Spec(error.to_string()))?;
        let zone = Tz::from_str(zone).map_err(|_| CronMistake::Zone)?;
        let times = Self { cron, zone };
        // A field has no year: what does not come after some time never comes.
        if times.after(DateTime::UNIX_EPOCH).is_none() {
            return Err(CronMistake::Spec(String::from("it names a time that never comes")));
        }
        Ok(times)
    }

    /// Returns the first time after `time`.
    pub(crate) fn after(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let next = self.cron.find_next_occurrence(&time.with_timezone(&self.zone), false);
        // It only goes forward, whatever the zone does.
        next.ok().map(|next| next.to_utc()).filter(|next| *next > time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_five_fields_that_name_a_time_are_taken() {
        for spec in ["0 3 * * *", "*/5 9-17 * * MON-FRI", "0 0 29 2 *", "0 0 L * *", "@daily"] {
            assert!(CronTimes::new(spec, "UTC").is_ok(), "{spec}");
        }
        for spec in ["", "0 3 * *", "0 0 3 * * *", "0 3 * * * 2027", "61 * * * *", "a b c d e"] {
            assert!(matches!(CronTimes::new(spec, "UTC"), Err(CronMistake::Spec(_))), "{spec}");
        }
        let never = CronTimes::new("0 0 30 2 *", "UTC").err();
        assert_eq!(
            never,
            Some(CronMistake::Spec(String::from("it names a time that never comes")))
        );
        assert_eq!(CronTimes::new("0 3 * * *", "Europe/Berlim").err(), Some(CronMistake::Zone));
    }
}

//! Times by a cron expression in a time zone.

use std::str::FromStr;

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::{GapInfo, Tz};
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
/// An hour by number (`30 2 * * *`, `0 2,14 * * *`) means a time of day: a time that the clock
/// leaves out comes right after the gap, and a time that the clock repeats comes once. Any hour
/// (`0 * * * *`, `0 */2 * * *`) follows the clock.
#[derive(Debug, Clone)]
pub(crate) struct CronTimes {
    cron: Cron,
    zone: Tz,
    /// Whether its hours are numbers.
    by_time_of_day: bool,
}

impl CronTimes {
    pub(crate) fn new(spec: &str, zone: &str) -> Result<Self, CronMistake> {
        let fields: Vec<&str> = spec.split_whitespace().collect();
        if fields.len() > FIELDS {
            return Err(CronMistake::Spec(format!(
                "it has {} fields, and seconds and years are none of them",
                fields.len()
            )));
        }
        let cron = parse(spec)?;
        check_steps(&fields)?;
        let zone = Tz::from_str(zone).map_err(|_| CronMistake::Zone)?;
        let steps_hours = fields.get(1).is_some_and(|hours| hours.contains('/'));
        let by_time_of_day = !steps_hours && !cron.pattern.hours.from_wildcard;
        let times = Self { cron, zone, by_time_of_day };
        // A field has no year: what does not come after some time never comes.
        if times.after(DateTime::UNIX_EPOCH).is_none() {
            return Err(CronMistake::Spec(String::from("it names a time that never comes")));
        }
        Ok(times)
    }

    /// Returns the first time after `time`.
    pub(crate) fn after(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let local = time.with_timezone(&self.zone);
        if !self.by_time_of_day {
            let next = self.cron.find_next_occurrence(&local, false).ok()?.to_utc();
            // It only goes forward, whatever the zone does.
            return (next > time).then_some(next);
        }
        // Times of day do not know the zone. Later ones never come earlier, so the first one that
        // comes after `time` is the next.
        let mut of_day = local.naive_local();
        loop {
            of_day = self.cron.find_next_occurrence(&of_day.and_utc(), false).ok()?.naive_utc();
            let comes = self.comes(&of_day)?;
            if comes > time {
                return Some(comes);
            }
        }
    }

    /// Returns when the clock first shows this time of day, or a later one if it leaves this one
    /// out.
    fn comes(&self, of_day: &NaiveDateTime) -> Option<DateTime<Utc>> {
        let shown = self.zone.from_local_datetime(of_day).earliest();
        let shown = shown.or_else(|| GapInfo::new(of_day, &self.zone)?.end);
        shown.map(|shown| shown.to_utc())
    }
}

fn parse(spec: &str) -> Result<Cron, CronMistake> {
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(spec).map_err(|error| CronMistake::Spec(error.to_string()))
}

/// Refuses a step that leaves its range at once: `*/70` minutes would mean each full hour.
fn check_steps(fields: &[&str]) -> Result<(), CronMistake> {
    for (place, field) in fields.iter().enumerate() {
        for part in field.split(',').filter(|part| part.contains('/')) {
            let mut alone = ["*"; FIELDS];
            if let Some(field) = alone.get_mut(place) {
                *field = part;
            }
            let pattern = parse(&alone.join(" "))?.pattern;
            let values = match place {
                0 => pattern.minutes,
                1 => pattern.hours,
                2 => pattern.days,
                3 => pattern.months,
                _ => pattern.days_of_week,
            };
            if values.values().len() < 2 && !values.has_modifiers() {
                return Err(CronMistake::Spec(format!(
                    "the step of {part} is larger than its range"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use chrono::{NaiveTime, TimeDelta, Timelike};
    use proptest::prelude::*;

    use super::*;

    /// Changes of clocks: by an hour, by half an hour, at midnight, by two hours.
    const CHANGES: [(&str, &str); 10] = [
        ("Europe/Berlin", "2027-03-28T01:00:00Z"),
        ("Europe/Berlin", "2027-10-31T01:00:00Z"),
        ("America/Los_Angeles", "2027-03-14T10:00:00Z"),
        ("America/Los_Angeles", "2027-11-07T09:00:00Z"),
        ("Australia/Lord_Howe", "2027-04-03T15:00:00Z"),
        ("Australia/Lord_Howe", "2027-10-02T15:30:00Z"),
        ("Africa/Cairo", "2027-04-29T22:00:00Z"),
        ("Africa/Cairo", "2027-10-28T21:00:00Z"),
        ("Antarctica/Troll", "2027-03-28T01:00:00Z"),
        ("Antarctica/Troll", "2027-10-31T01:00:00Z"),
    ];

    fn at(time: &str) -> DateTime<Utc> {
        time.parse().unwrap()
    }

    /// All times in the hours around `change`.
    fn around(times: &CronTimes, change: DateTime<Utc>, hours: i64) -> Vec<DateTime<Utc>> {
        let hours = TimeDelta::hours(hours);
        let next = std::iter::successors(times.after(change - hours), |last| times.after(*last));
        next.take_while(|time| *time <= change + hours).collect()
    }

    /// The same by walking through the minutes: each time of day comes at the first minute that
    /// shows it, or a later one.
    fn by_walking(
        zone: Tz,
        of_day: impl Fn(NaiveTime) -> bool,
        change: DateTime<Utc>,
        hours: i64,
    ) -> Vec<DateTime<Utc>> {
        let minutes = |by: i64| (-by * 60..=by * 60).map(TimeDelta::minutes);
        let local_at = |time: DateTime<Utc>| time.with_timezone(&zone).naive_local();
        let shown = local_at(change);
        let clock: Vec<_> =
            minutes(hours + 6).map(|by| change + by).map(|time| (time, local_at(time))).collect();
        let mut comes: Vec<_> = minutes(hours + 3)
            .map(|by| shown + by)
            .filter(|local| of_day(local.time()))
            .filter_map(|local| {
                let exactly = clock.iter().find(|(_, shown)| *shown == local);
                exactly.or_else(|| clock.iter().find(|(_, shown)| *shown > local))
            })
            .map(|(time, _)| *time)
            .filter(|time| (*time - change).abs() <= TimeDelta::hours(hours))
            .filter(|time| *time > change - TimeDelta::hours(hours))
            .collect();
        comes.sort();
        comes.dedup();
        comes
    }

    #[test]
    fn lists_and_ranges_of_hours_mean_times_of_day() {
        // In Berlin: on the day that leaves 2:00 to 3:00 out, and on the day that repeats it.
        let cases = [
            ("30 2 * * *", &["01:00"][..], &["00:30"][..]),
            ("0 2,14 * * *", &["01:00", "12:00"], &["00:00", "13:00"]),
            ("0,30 2 * * *", &["01:00"], &["00:00", "00:30"]),
            ("0 1-3 * * *", &["00:00", "01:00"], &["23:00", "00:00", "02:00"]),
            ("*/20 2 * * *", &["01:00"], &["00:00", "00:20", "00:40"]),
            ("0 2-3,14 * * 0", &["01:00", "12:00"], &["00:00", "02:00", "13:00"]),
        ];
        for (spec, forward, back) in cases {
            let times = CronTimes::new(spec, "Europe/Berlin").unwrap();
            let days = [("2027-03-27T22:59:59Z", 23, forward), ("2027-10-30T21:59:59Z", 25, back)];
            for (midnight, hours, expected) in days {
                let (midnight, hours) = (at(midnight), TimeDelta::hours(hours));
                let of_day: Vec<_> =
                    std::iter::successors(times.after(midnight), |last| times.after(*last))
                        .take_while(|time| *time <= midnight + hours)
                        .map(|time| time.format("%H:%M").to_string())
                        .collect();
                assert_eq!(of_day, expected, "{spec} from {midnight}");
            }
        }
    }

    #[test]
    fn steps_of_hours_follow_the_clock() {
        for spec in ["0 * * * *", "0 0-23/1 * * *", "0 */1 * * *", "@hourly"] {
            for (zone, change) in CHANGES {
                if zone == "Australia/Lord_Howe" {
                    continue;
                }
                let times = CronTimes::new(spec, zone).unwrap();
                assert_eq!(around(&times, at(change), 4).len(), 8, "{spec} in {zone}");
            }
        }
    }

    #[test]
    fn a_step_larger_than_its_range_is_refused() {
        for spec in [
            "*/70 * * * *",
            "*/60 * * * *",
            "0 */24 * * *",
            "0 0 */40 * *",
            "0 0 1 */12 *",
            "10-12/5 * * * *",
            "0,10-12/5 * * * *",
            "0 0 * * 1-2/3",
        ] {
            let error = CronTimes::new(spec, "UTC").err();
            assert!(
                matches!(&error, Some(CronMistake::Spec(said)) if said.contains("larger than its range")),
                "{spec}: {error:?}"
            );
        }
        for spec in ["*/59 * * * *", "0 */23 * * *", "10-15/5 * * * *", "0 0 * * MON-FRI/2"] {
            assert!(CronTimes::new(spec, "UTC").is_ok(), "{spec}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_time_of_day_comes_once_through_each_change(
            minutes in proptest::collection::btree_set(0_u32..60, 1..4),
            hours in proptest::collection::btree_set(prop_oneof![0_u32..5, 0_u32..24], 1..5),
            change in 0..CHANGES.len(),
        ) {
            let list = |values: &std::collections::BTreeSet<u32>| {
                values.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
            };
            let (zone, change) = (CHANGES[change].0, at(CHANGES[change].1));
            let spec = format!("{} {} * * *", list(&minutes), list(&hours));
            let times = CronTimes::new(&spec, zone).unwrap();
            let named = |time: NaiveTime| minutes.contains(&time.minute()) && hours.contains(&time.hour());
            let walked = by_walking(zone.parse().unwrap(), named, change, 30);
            prop_assert_eq!(around(&times, change, 30), walked, "{} in {}", spec, zone);
        }
    }

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

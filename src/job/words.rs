//! Counts and names in words, for the sentences of results.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

/// Returns a number with its noun: `1 job`, `2 jobs`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns a number with its noun and the verb: `1 job is`, `2 jobs are`.
pub(crate) fn counted_are(number: u64, noun: &str) -> String {
    format!("{} {}", counted(number, noun), if number == 1 { "is" } else { "are" })
}

/// Returns a time as tables and sentences print it.
pub(crate) fn clock_time(time: &DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns a time span in words, not rounded: `150 s`, `1500 ms`, `1 h`.
pub(crate) fn span(time: Duration) -> String {
    let ms = time.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let unit = units.into_iter().find(|(length, _)| ms > 0 && ms.is_multiple_of(*length));
    let (length, unit) = unit.unwrap_or((1, "ms"));
    format!("{} {unit}", ms / length)
}

/// A queue, or a group of it. Prints as `queue "q"`, or as `group "g" of queue "q"`.
pub(crate) struct Lane<'a> {
    pub(crate) queue: &'a str,
    pub(crate) group: Option<&'a str>,
}

impl fmt::Display for Lane<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            write!(f, "group {group:?} of ")?;
        }
        write!(f, "queue {:?}", self.queue)
    }
}

/// Returns how many later jobs of a group have begun before one that is queued again.
pub(crate) fn overtaken(jobs: u64) -> String {
    match jobs {
        0 => String::from("no later job is known to have begun"),
        1 => String::from("1 later job has already begun"),
        jobs => format!("{jobs} later jobs have already begun"),
    }
}

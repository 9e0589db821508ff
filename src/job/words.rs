//! Counts in words, for the sentences of results.

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

/// Returns how many later jobs of a group have begun before one that is queued again.
pub(crate) fn overtaken(jobs: u64) -> String {
    match jobs {
        0 => String::from("no later job is known to have begun"),
        1 => String::from("1 later job has already begun"),
        jobs => format!("{jobs} later jobs have already begun"),
    }
}

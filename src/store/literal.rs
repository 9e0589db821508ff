//! Values as literals, for statements that go several to a message and so cannot be prepared.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};

/// A text as a literal, whatever is in it and however the session reads strings. It has the
/// columns' collation: by itself it would have that of a name, for which no index serves.
pub(crate) fn literal(text: &str) -> String {
    let mut hex = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        _ = write!(hex, "{byte:02x}");
    }
    format!("(convert_from(decode('{hex}', 'hex'), 'UTF8') collate pg_catalog.\"default\")")
}

/// The same of a name of queues or channels: in plain where it needs no care, which costs the
/// server less to read.
pub(crate) fn name(text: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || " _-.:/@#".contains(char);
    if text.chars().all(plain) { format!("'{text}'") } else { literal(text) }
}

/// The id as a literal, or `null`.
pub(crate) fn id(id: Option<i64>) -> String {
    id.map_or_else(|| "null".to_owned(), |id| format!("'{id}'"))
}

/// The time as a literal, or `none`.
pub(crate) fn time(time: Option<DateTime<Utc>>, none: &str) -> String {
    time.map_or_else(|| none.to_owned(), |time| format!("'{}'", time.to_rfc3339()))
}

/// An array of numbers, UUIDs or truths as a literal.
pub(crate) fn array<T: std::fmt::Display>(of: &str, values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("'{{{}}}'::{of}[]", values.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_is_safe_whatever_is_in_it() {
        let safe = "(convert_from(decode('275c', 'hex'), 'UTF8') collate pg_catalog.\"default\")";
        assert_eq!(literal("'\\"), safe);
        assert_eq!(name("'\\"), safe);
        assert_eq!(name("emails-2:é"), literal("emails-2:é"));
        assert_eq!(name("emails-2.eu/a_b #1"), "'emails-2.eu/a_b #1'");
    }
}

//! Headers: what travels with a job beside its data, such as the context of a trace.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::Value;

/// The headers of a job, by name.
pub(crate) type Headers = BTreeMap<String, String>;

/// Bounds them, in bytes of JSON.
pub(crate) const LIMIT: usize = 4096;
/// The header of a schedule's job: the time that it was made for.
pub(crate) const SCHEDULED_FOR: &str = "seriatim-scheduled-for";
/// The header of a batch's follow-up: the batch.
pub(crate) const ENDED_BATCH: &str = "seriatim-ended-batch";
/// Longest name, in characters.
pub(crate) const NAME_LIMIT: usize = 200;

/// Returns the due time of a schedule that a job was made for; `None` if none made it.
pub(crate) fn scheduled_for(headers: &Headers) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(headers.get(SCHEDULED_FOR)?);
    time.ok().map(|time| time.to_utc())
}

/// Returns the batch that a job is the follow-up of; `None` if it is none.
pub(crate) fn ended_batch(headers: &Headers) -> Option<i64> {
    headers.get(ENDED_BATCH)?.parse().ok()
}

/// Reads the headers of a row. A value that is no string, which only a statement by hand can have
/// written, is its JSON.
pub(crate) fn parse(json: Option<&str>) -> Result<Headers, serde_json::Error> {
    let Some(json) = json else { return Ok(Headers::new()) };
    let values: BTreeMap<String, Value> = serde_json::from_str(json)?;
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(values.into_iter().map(|(name, value)| (name, text(value))).collect())
}

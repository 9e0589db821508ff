//! JSON, as the database accepts it and as it returns it.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Type};

/// Bounds the nesting of JSON: `serde_json` reads no deeper, so no handler could.
pub(crate) const DEPTH_LIMIT: usize = 127;

/// Returns whether JSON text has an escaped NUL, which `jsonb` refuses: `\u0000` behind an even
/// number of backslashes.
pub(crate) fn has_nul(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let escapes = json[..at].bytes().rev().take_while(|b| *b == b'\\').count();
        escapes % 2 == 0
    })
}

/// Returns the depth of JSON text, or 0 if it is certainly within the limit.
pub(crate) fn depth(json: &str) -> usize {
    let opens = |byte: &u8| matches!(byte, b'[' | b'{');
    if json.as_bytes().iter().filter(|byte| opens(byte)).count() <= DEPTH_LIMIT {
        return 0;
    }
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Serializes a time as seconds.
pub(crate) fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

/// Reads a time from seconds.
pub(crate) fn from_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
}

/// Serializes a time as seconds, or null.
#[allow(clippy::ref_option)] // serde passes it so.
pub(crate) fn optional_seconds<S: Serializer>(
    time: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(to)
}

/// Serializes bytes as text, in PostgreSQL's form: `\x00ff`. Null for none.
#[allow(clippy::ref_option)] // serde passes it so.
pub(crate) fn optional_bytes<S: Serializer>(
    bytes: &Option<Vec<u8>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let hex = |bytes: &Vec<u8>| {
        let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or('0');
        let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
        "\\x".chars().chain(digits).collect::<String>()
    };
    bytes.as_ref().map(hex).serialize(to)
}

/// `jsonb` that can always be read, and its text: the value has rounded numbers. JSON of other
/// producers that `serde_json` cannot hold (nested deeper than [`DEPTH_LIMIT`], numbers beyond
/// `f64`) comes as a string: its text. One such job must not hide the others of a list.
pub(crate) struct Readable {
    pub(crate) value: Value,
    pub(crate) text: String,
}

impl Readable {
    pub(crate) fn null() -> Self {
        Self { value: Value::Null, text: String::from("null") }
    }
}

impl Type<Postgres> for Readable {
    fn type_info() -> PgTypeInfo {
        <Value as Type<Postgres>>::type_info()
    }
}

impl Decode<'_, Postgres> for Readable {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let binary = value.format() == PgValueFormat::Binary;
        let text = match value.as_bytes()? {
            // The version of jsonb's binary form.
            [1, text @ ..] if binary => text,
            text => text,
        };
        let text = std::str::from_utf8(text)?.to_owned();
        let value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.clone()));
        Ok(Self { value, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_nul_is_found_and_a_written_backslash_is_not() {
        let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
        assert!(has_nul(&json("a\0b")));
        assert!(has_nul(&json("\\\0")));
        assert!(!has_nul(&json("\\u0000")));
        assert!(!has_nul(&json("plain")));
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |n: usize| "[".repeat(n) + "\"[\\\"{\"" + &"]".repeat(n);
        assert_eq!(depth(&nested(DEPTH_LIMIT - 10)), 0, "as good as none");
        assert_eq!(depth(&nested(DEPTH_LIMIT)), DEPTH_LIMIT);
        assert_eq!(depth(&nested(DEPTH_LIMIT + 1)), DEPTH_LIMIT + 1);
        assert_eq!(depth(&"{}".repeat(1_000)), 1);
        assert!(serde_json::from_str::<serde_json::Value>(&nested(DEPTH_LIMIT)).is_ok());
        assert!(serde_json::from_str::<serde_json::Value>(&nested(DEPTH_LIMIT + 1)).is_err());
    }
}

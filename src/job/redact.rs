//! Keeps the data of jobs out of logs and errors: neither a job's `Debug` nor the message of a
//! decoding error shows it.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use sqlx::error::{DatabaseError, ErrorKind};

use crate::job::reason::database_reason;

/// Stands for a value in `Debug`.
pub(crate) struct Redacted;

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}

/// Returns what is wrong with JSON, without its values. The words of types and of JSON's syntax are
/// kept.
pub(crate) fn json_error(error: &serde_json::Error) -> String {
    let said = error.to_string();
    if !error.is_data() {
        return said;
    }
    let (line, column) = (error.line(), error.column());
    let place = format!(" at line {line} column {column}");
    match said.strip_suffix(&place) {
        Some(said) => data_error(said) + &place,
        None => data_error(&said),
    }
}

/// Returns serde's message without values and without a position.
pub(crate) fn data_error(said: &str) -> String {
    // The names in these are those of the handler's type.
    let of_the_type = [
        "missing field `",
        "duplicate field `",
        "invalid length ",
        "data did not match any variant of untagged enum ",
    ];
    // The text behind the last of these words comes from the type; the value may have them before.
    let expected = || said.rfind(", expected ").map_or("", |at| &said[at..]);
    if of_the_type.iter().any(|start| said.starts_with(start)) {
        return said.to_owned();
    }
    for (start, kinds) in [("invalid type: ", &KINDS[..]), ("invalid value: ", &KINDS)] {
        if let Some(value) = said.strip_prefix(start) {
            let kind = kinds.iter().find(|kind| value.starts_with(**kind)).unwrap_or(&"a value");
            return format!("{start}{kind}{}", expected());
        }
    }
    for start in ["unknown field", "unknown variant"] {
        if said.starts_with(start) {
            return format!("{start}{}", expected());
        }
    }
    String::from("the handler's type refuses a value (its words are redacted, they may quote it)")
}

/// The words that serde has for the kinds of values.
const KINDS: [&str; 17] = [
    "boolean",
    "integer",
    "floating point",
    "character",
    "string",
    "byte array",
    "unit value",
    "null",
    "Option value",
    "newtype struct",
    "sequence",
    "map",
    "enum",
    "unit variant",
    "newtype variant",
    "tuple variant",
    "struct variant",
];

/// A database error whose `Debug` is its message: sqlx's shows PostgreSQL's detail too, which
/// quotes whole rows and pieces of JSON. `try_downcast_ref::<PgDatabaseError>()` still returns the
/// detail.
struct RedactedDetail(Box<dyn DatabaseError>);

/// Keeps the detail of a database error out of its `Debug`.
pub(crate) fn redact_detail(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(error) => sqlx::Error::Database(Box::new(RedactedDetail(error))),
        error => error,
    }
}

impl fmt::Debug for RedactedDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseError")
            .field("code", &self.0.code())
            .field("message", &self.0.message())
            .field("constraint", &self.0.constraint())
            .field("detail", &Redacted)
            .finish()
    }
}

impl fmt::Display for RedactedDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&database_reason(&*self.0))
    }
}

impl StdError for RedactedDetail {}

impl DatabaseError for RedactedDetail {
    fn message(&self) -> &str {
        self.0.message()
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        self.0.code()
    }

    fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self.0.as_error()
    }

    fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
        self.0.as_error_mut()
    }

    fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
        self.0.into_error()
    }

    fn is_transient_in_connect_phase(&self) -> bool {
        self.0.is_transient_in_connect_phase()
    }

    fn constraint(&self) -> Option<&str> {
        self.0.constraint()
    }

    fn table(&self) -> Option<&str> {
        self.0.table()
    }

    fn kind(&self) -> ErrorKind {
        self.0.kind()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its errors are read")]
    struct Posting {
        account: u32,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only its errors are read")]
    enum Kind {
        A,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "only its errors are read")]
    enum Either {
        A(u32),
    }

    fn said<T: DeserializeOwned>(json: &str) -> String {
        match serde_json::from_str::<T>(json) {
            Ok(_) => String::from("it decodes"),
            Err(error) => {
                let said = json_error(&error);
                // The position, as `serde_json` writes it.
                said.split(" at line 1 column ").next().unwrap_or_default().to_owned()
            }
        }
    }

    #[test]
    fn values_that_do_not_decode_are_not_quoted() {
        assert_eq!(said::<u32>(r#""a, expected b: SECRET""#), "invalid type: string, expected u32");
        assert_eq!(said::<u8>("4711"), "invalid value: integer, expected u8");
        assert_eq!(said::<Posting>(r#"{"SECRET": 1}"#), "unknown field, expected `account`");
        assert_eq!(said::<Kind>(r#""SECRET""#), "unknown variant, expected `A`");
        assert_eq!(
            said::<Either>(r#""SECRET""#),
            "data did not match any variant of untagged enum Either"
        );
        assert!(said::<std::net::IpAddr>(r#""SECRET""#).contains("redacted"));
        assert!(!said::<HashMap<u32, u32>>(r#"{"SECRET": 1}"#).contains("SECRET"));
    }

    #[test]
    fn the_words_of_the_type_and_of_the_syntax_are_kept() {
        let error = serde_json::from_str::<Posting>("{}").map_err(|error| json_error(&error));
        assert_eq!(error.err().as_deref(), Some("missing field `account` at line 1 column 2"));
        assert_eq!(said::<(u8, u8)>("[1]"), "invalid length 1, expected a tuple of size 2");
        assert_eq!(said::<serde_json::Value>("[1e999]"), "number out of range");
        assert_eq!(said::<u8>("[1"), "invalid type: sequence, expected u8");
    }
}

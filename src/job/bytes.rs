//! A job's data: raw bytes as the handler takes them, and data as the database has it.

use std::fmt::{self, Write};
use std::ops::Deref;

use serde::de::value::{BytesDeserializer, Error as ValueError};
use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserialize, Deserializer};

use crate::job::place::field_at;
use crate::job::redact::{data_error, json_error};

/// A job's raw bytes, as its handler takes them: `type Data = seriatim::Bytes`.
///
/// For jobs of [`NewJob::bytes`](crate::NewJob::bytes). A job with JSON data does not decode into
/// it, also if the JSON is a string: the attempt fails with
/// [`FailureKind::Data`](crate::FailureKind::Data). So does a job with raw bytes if the handler's
/// type takes none. Any type that serde can make from bytes takes them, `String` (if they are
/// UTF-8) for one.
///
/// Its `Debug` shows the number of bytes only.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.0.len())
    }
}

impl Bytes {
    /// Returns the bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<Bytes> for Vec<u8> {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Raw;
        impl Visitor<'_> for Raw {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a job with raw bytes (NewJob::bytes)")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        // Not as bytes: JSON would pass the text of a string. A JSON newtype meets no visit above.
        from.deserialize_newtype_struct("Bytes", Raw)
    }
}

/// The data of a job, as the database has it.
pub(crate) enum JobData {
    /// The text of JSON.
    Json(String),
    Bytes {
        content_type: Option<String>,
        bytes: Vec<u8>,
    },
}

impl fmt::Debug for JobData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(text) => write!(f, "Json({} bytes)", text.len()),
            Self::Bytes { content_type, bytes } => {
                write!(f, "Bytes({} bytes of {content_type:?})", bytes.len())
            }
        }
    }
}

/// Decodes the text of JSON, as [`JobData::decode`] does.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    from_text(text).map_err(|error| not_decoded::<T>(&error))
}

fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| {
        let field = field_at::<T>(text, error.line(), error.column());
        let field = field.map(|field| format!(", in field `{field}`"));
        json_error(&error) + &field.unwrap_or_default()
    })
}

fn not_decoded<T>(error: &str) -> String {
    format!("the data does not decode into {}: {error}", std::any::type_name::<T>())
}

impl JobData {
    /// Decodes into the handler's type. An error says which type, and what is wrong where, without
    /// the data.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        self.decoded().map_err(|error| not_decoded::<T>(&error))
    }

    fn decoded<T: DeserializeOwned>(&self) -> Result<T, String> {
        match self {
            Self::Json(text) => from_text(text),
            Self::Bytes { content_type, bytes } => {
                let raw = BytesDeserializer::<ValueError>::new(bytes);
                T::deserialize(raw).map_err(|error| {
                    let (size, what) = (bytes.len(), content_type.as_deref().unwrap_or("unknown type"));
                    format!(
                        "the job has {size} raw bytes ({what}), not JSON, and the handler's data does not decode from \
                         them: {}; take them as seriatim::Bytes",
                        data_error(&error.to_string())
                    )
                })
            }
        }
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(bytes: &[u8]) -> JobData {
        JobData::Bytes { content_type: Some("text/plain".into()), bytes: bytes.to_vec() }
    }

    #[test]
    fn bytes_decode_into_bytes_and_text() {
        assert_eq!(raw(&[0, 255]).decode(), Ok(Bytes(vec![0, 255])));
        assert_eq!(raw(b"").decode(), Ok(Bytes::default()));
        assert_eq!(raw("\u{fc}".as_bytes()).decode(), Ok("\u{fc}".to_owned()));
        assert!(raw(&[255]).decode::<String>().is_err());
    }

    #[test]
    fn json_and_bytes_are_not_mixed_up() {
        let error = raw(b"{}").decode::<serde_json::Value>().unwrap_err();
        assert!(error.contains("2 raw bytes (text/plain), not JSON"), "{error}");
        for json in ["\"text\"", "[1, 2]", "null", "{}"] {
            let error = JobData::Json(json.to_owned()).decode::<Bytes>().unwrap_err();
            assert!(error.contains("a job with raw bytes"), "{error}");
        }
    }
}

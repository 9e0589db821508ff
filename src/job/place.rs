//! Where JSON does not decode: the field of the type, and never a key that may be data.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;

/// Returns the field of `T`, a struct, in which JSON failed to decode at a line and a column.
/// `None` if it is no field: a key of a map is data.
pub(crate) fn field_at<T: DeserializeOwned>(
    json: &str,
    line: usize,
    column: usize,
) -> Option<&'static str> {
    let key = key_at(json, line, column)?;
    let Err(Fields(fields)) = T::deserialize(Asked) else { return None };
    fields.iter().copied().find(|field| *field == key)
}

/// Returns the last key of the outer object up to a line and a column.
fn key_at(json: &str, line: usize, column: usize) -> Option<&str> {
    let before: usize = json.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let end = before.saturating_add(column).min(json.len());
    let (mut depth, mut quoted, mut escaped, mut begun) = (0_usize, false, false, 0);
    let (mut text, mut key) = (None, None);
    for (at, byte) in json.bytes().enumerate().take(end) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' if quoted => {
                quoted = false;
                text = json.get(begun..at).filter(|_| depth == 1);
            }
            b'"' => (quoted, begun) = (true, at + 1),
            _ if quoted => {}
            b':' if depth == 1 => key = text.take(),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    key
}

/// Answers a type that asks to be decoded with the fields that it names.
struct Asked;

/// The fields that a type has named; none if it is no struct.
#[derive(Debug)]
struct Fields(&'static [&'static str]);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fields")
    }
}

impl std::error::Error for Fields {}

impl Error for Fields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Asked {
    type Error = Fields;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fields> {
        Err(Fields(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Fields> {
        Err(Fields(fields))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only decoded")]
    struct Posting {
        account: String,
        amount: BTreeMap<String, i64>,
    }

    fn field<T: DeserializeOwned>(json: &str) -> Option<&'static str> {
        let error = serde_json::from_str::<T>(json).err()?;
        field_at::<T>(json, error.line(), error.column())
    }

    #[test]
    fn a_field_is_named_and_a_key_of_a_map_is_not() {
        assert_eq!(field::<Posting>(r#"{"account": 7, "amount": {}}"#), Some("account"));
        let nested = r#"{"account": "a \" b: {", "amount": {"account": "x"}}"#;
        assert_eq!(field::<Posting>(nested), Some("amount"));
        assert_eq!(field::<Posting>("{\n\"account\": \"b\",\n\"amount\": 1}"), Some("amount"));
        assert_eq!(field::<BTreeMap<String, i64>>(r#"{"secret": "x"}"#), None);
        assert_eq!(field::<Posting>("[1, 2]"), None);
        assert_eq!(field::<u32>("\"x\""), None);
    }
}

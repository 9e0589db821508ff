//! The rules for a message: its body, its attributes, its ids. Refusals have the texts of AWS, as
//! far as these are known.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Code, SqsError};

/// The largest message, and the largest batch, in bytes: 1 MiB.
pub(crate) const SIZE_LIMIT: usize = 1024 * 1024;
/// The most attributes of a message.
const ATTRIBUTES_LIMIT: usize = 10;
const ATTRIBUTE_NAME_LIMIT: usize = 256;
const ATTRIBUTE_TYPE_LIMIT: usize = 256;
const ID_LIMIT: usize = 128;
/// The most digits of a number, and the exponents that its first digit may have.
const DIGITS_LIMIT: usize = 38;
const SMALLEST_EXPONENT: i64 = -128;
const LARGEST_EXPONENT: i64 = 126;

/// An attribute as a request has it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct GivenAttribute {
    data_type: Option<String>,
    string_value: Option<String>,
    binary_value: Option<String>,
}

impl GivenAttribute {
    /// Returns its size; three bytes are four characters of base64.
    pub(crate) fn size(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        of(&self.data_type) + of(&self.string_value) + of(&self.binary_value) / 4 * 3
    }
}

/// The attributes of a request, by name.
pub(crate) type GivenAttributes = BTreeMap<String, GivenAttribute>;

/// An attribute that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) data_type: String,
    pub(crate) value: AttributeValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttributeValue {
    Text(String),
    Bytes(Vec<u8>),
}

/// Attributes by name.
pub(crate) type Attributes = BTreeMap<String, Attribute>;

impl Attribute {
    fn size(&self) -> usize {
        self.data_type.len()
            + match &self.value {
                AttributeValue::Text(text) => text.len(),
                AttributeValue::Bytes(bytes) => bytes.len(),
            }
    }

    /// Returns it as SQS spells it.
    pub(crate) fn to_json(&self) -> Value {
        match &self.value {
            AttributeValue::Text(text) => json!({"DataType": self.data_type, "StringValue": text}),
            AttributeValue::Bytes(bytes) => {
                json!({"DataType": self.data_type, "BinaryValue": BASE64.encode(bytes)})
            }
        }
    }
}

/// Returns attributes as SQS spells them.
pub(crate) fn attributes_to_json(attributes: &Attributes) -> Map<String, Value> {
    attributes.iter().map(|(name, attribute)| (name.clone(), attribute.to_json())).collect()
}

/// Reads the attributes of a job. An attribute that only SQL by hand can have written is left out:
/// XML could not hold it as its checksum has it.
pub(crate) fn attributes_of_job(stored: Option<&Value>) -> Attributes {
    let Some(Value::Object(stored)) = stored else { return Attributes::new() };
    let known = stored.iter().filter_map(|(name, attribute)| {
        let given = GivenAttribute::deserialize(attribute).ok()?;
        let attribute = check_attribute(name, given).ok()?;
        let is_sound = is_sendable(name) && is_sendable(&attribute.data_type);
        is_sound.then(|| (name.clone(), attribute))
    });
    known.collect()
}

/// Returns the size of a message, as its limit counts it.
pub(crate) fn size(body: &str, attributes: &Attributes) -> usize {
    let attributes = attributes.iter().map(|(name, attribute)| name.len() + attribute.size());
    body.len() + attributes.sum::<usize>()
}

/// Refuses a body that no message has.
pub(crate) fn check_body(body: Option<String>) -> Result<String, SqsError> {
    let body = body.filter(|body| !body.is_empty());
    let body = body.ok_or_else(|| SqsError::missing("MessageBody"))?;
    match body.chars().find(|c| !is_allowed(*c)) {
        None => Ok(body),
        Some(other) => Err(SqsError::new(
            Code::InvalidMessageContents,
            format!(
                "Invalid binary character '#x{:X}' was found in the message body, the set of \
                 allowed characters is #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | \
                 #x10000 to #x10FFFF",
                u32::from(other)
            ),
        )),
    }
}

/// Returns whether a text has only characters that a message may have.
pub(crate) fn is_sendable(text: &str) -> bool {
    text.chars().all(is_allowed)
}

/// Returns whether a message may have this character: those that XML can hold.
fn is_allowed(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

pub(crate) fn check_attributes(given: GivenAttributes) -> Result<Attributes, SqsError> {
    if given.len() > ATTRIBUTES_LIMIT {
        return Err(refused(format!(
            "Number of message attributes [{}] exceeds the allowed maximum [{ATTRIBUTES_LIMIT}].",
            given.len()
        )));
    }
    given
        .into_iter()
        .map(|(name, attribute)| {
            check_attribute_name(&name)?;
            let attribute = check_attribute(&name, attribute)?;
            check_type(&name, &attribute.data_type)?;
            check_number(&name, &attribute)?;
            Ok((name, attribute))
        })
        .collect()
}

fn refused(message: String) -> SqsError {
    SqsError::new(Code::InvalidParameterValue, message)
}

fn check_attribute_name(name: &str) -> Result<(), SqsError> {
    let lower = name.to_ascii_lowercase();
    if name.is_empty() || name.len() > ATTRIBUTE_NAME_LIMIT {
        return Err(refused(format!(
            "The length of message attribute name must be between 1 and {ATTRIBUTE_NAME_LIMIT}."
        )));
    } else if !name.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) {
        return Err(refused(format!(
            "The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, \
             0-9, underscore (_), hyphen (-), and period (.) characters."
        )));
    } else if lower.starts_with("aws.") || lower.starts_with("amazon.") {
        return Err(refused(format!(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.', as in \
             '{name}'. These strings are reserved for internal use."
        )));
    } else if name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        return Err(refused(format!(
            "The message attribute name '{name}' is invalid. Attribute name can't start or end \
             with a period (.), or have two in a row."
        )));
    }
    Ok(())
}

fn check_attribute(name: &str, given: GivenAttribute) -> Result<Attribute, SqsError> {
    let data_type = given.data_type.filter(|kind| !kind.is_empty()).ok_or_else(|| {
        refused(format!(
            "The message attribute '{name}' must contain non-empty message attribute type."
        ))
    })?;
    let kind = data_type.split('.').next().unwrap_or_default();
    let value = match kind {
        "String" | "Number" => given.string_value.map(AttributeValue::Text),
        "Binary" => match given.binary_value.map(|value| BASE64.decode(value)).transpose() {
            Ok(bytes) => bytes.map(AttributeValue::Bytes),
            Err(_) => {
                return Err(refused(format!(
                    "The binary value of the message attribute '{name}' is not base64."
                )));
            }
        },
        _ => {
            return Err(refused(format!(
                "The message attribute '{name}' has an invalid message attribute type, the set of \
                 supported type prefixes is Binary, Number, and String."
            )));
        }
    };
    let is_empty = match &value {
        None => true,
        Some(AttributeValue::Text(text)) => text.is_empty(),
        Some(AttributeValue::Bytes(bytes)) => bytes.is_empty(),
    };
    let Some(value) = value.filter(|_| !is_empty) else {
        return Err(refused(format!(
            "Message (user) attribute '{name}' must contain a non-empty value of type \
             '{data_type}'."
        )));
    };
    if let AttributeValue::Text(text) = &value
        && !is_sendable(text)
    {
        return Err(refused(format!(
            "The message attribute '{name}' has a character that no message may have."
        )));
    }
    Ok(Attribute { data_type, value })
}

/// Refuses a type whose label is long or cannot be told in XML. Its beginning was checked.
fn check_type(name: &str, data_type: &str) -> Result<(), SqsError> {
    if data_type.len() <= ATTRIBUTE_TYPE_LIMIT && is_sendable(data_type) {
        return Ok(());
    }
    Err(refused(format!(
        "The type of message (user) attribute '{name}' must have at most {ATTRIBUTE_TYPE_LIMIT} \
         bytes, and characters that a message may have."
    )))
}

/// Refuses a number that is none, or that has too many digits or too large an exponent. It is kept
/// as it was sent.
fn check_number(name: &str, attribute: &Attribute) -> Result<(), SqsError> {
    let AttributeValue::Text(text) = &attribute.value else { return Ok(()) };
    if attribute.data_type.split('.').next() != Some("Number") {
        return Ok(());
    }
    let (digits, exponent) = decimal(text).ok_or_else(|| {
        refused(format!("Can't cast the value of message (user) attribute '{name}' to a number."))
    })?;
    let is_largest = digits == "1" && exponent == LARGEST_EXPONENT;
    if digits.is_empty()
        || is_largest
        || (digits.len() <= DIGITS_LIMIT
            && (SMALLEST_EXPONENT..LARGEST_EXPONENT).contains(&exponent))
    {
        return Ok(());
    }
    Err(refused(format!(
        "The number of message (user) attribute '{name}' must have at most {DIGITS_LIMIT} digits \
         and be between 10^{SMALLEST_EXPONENT} and 10^{LARGEST_EXPONENT}."
    )))
}

/// Returns the digits of a decimal number without zeros at its ends, and the exponent of the first
/// one; no digits for zero. `None` if it is no number.
fn decimal(text: &str) -> Option<(String, i64)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
        None => (unsigned, 0_i64),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || !all.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = all.trim_start_matches('0');
    let first = i64::try_from(whole.len()).ok()? - i64::try_from(all.len() - digits.len()).ok()?;
    Some((digits.trim_end_matches('0').to_owned(), exponent.saturating_add(first - 1)))
}

/// The one system attribute that clients send: the context of a trace.
pub(crate) const TRACE_HEADER: &str = "AWSTraceHeader";
pub(crate) const TRACE_LIMIT: usize = 1024;

/// Returns the system attributes, of which there is only [`TRACE_HEADER`].
pub(crate) fn check_system_attributes(given: GivenAttributes) -> Result<Attributes, SqsError> {
    let attributes = check_attributes(given)?;
    for (name, attribute) in &attributes {
        if name != TRACE_HEADER {
            let reason = "Only AWSTraceHeader is supported.";
            return Err(SqsError::invalid(name, "MessageSystemAttributes", reason));
        }
        match &attribute.value {
            AttributeValue::Text(text) if text.len() <= TRACE_LIMIT => {}
            _ => {
                let reason = format!("{TRACE_HEADER} is a text of at most {TRACE_LIMIT} bytes.");
                return Err(SqsError::invalid(name, "MessageSystemAttributes", &reason));
            }
        }
    }
    Ok(attributes)
}

/// Refuses what cannot be an id: of a group, a deduplication or a receive attempt.
pub(crate) fn check_id(id: &str, parameter: &str) -> Result<(), SqsError> {
    let is_sound = (1..=ID_LIMIT).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic());
    if is_sound {
        return Ok(());
    }
    let reason = format!(
        "{parameter} can only include alphanumeric and punctuation characters. 1 to {ID_LIMIT} in \
         length."
    );
    Err(SqsError::invalid(id, parameter, &reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(attributes: Value) -> Result<Attributes, SqsError> {
        check_attributes(serde_json::from_value(attributes).unwrap())
    }

    #[test]
    fn a_body_has_characters_that_xml_can_hold() {
        for sound in ["a", "\t\n\r ", "\u{e000}\u{fffd}\u{1f600}"] {
            assert!(check_body(Some(sound.into())).is_ok(), "{sound:?}");
        }
        for odd in ["", "a\0", "\u{1f}", "\u{fffe}", "\u{ffff}"] {
            assert!(check_body(Some(odd.into())).is_err(), "{odd:?}");
        }
        assert_eq!(check_body(None).unwrap_err().code, Code::MissingParameter);
    }

    #[test]
    fn attributes_have_names_types_and_values() {
        let sound = json!({"a_-.b": {"DataType": "String.x", "StringValue": "v"},
            "n": {"DataType": "Number", "StringValue": "1e3"},
            "b": {"DataType": "Binary", "BinaryValue": "AA=="}});
        let attributes = checked(sound.clone()).unwrap();
        assert_eq!(attributes_to_json(&attributes), *sound.as_object().unwrap());
        assert_eq!(attributes_of_job(Some(&sound)), attributes);
        assert_eq!(size("body", &attributes), 4 + (5 + 8 + 1) + (1 + 6 + 3) + (1 + 6 + 1));
        let string = json!({"DataType": "String", "StringValue": "v"});
        for name in
            ["", "\u{1f600}", "a b", "AWS.x", "amazon.x", ".a", "a.", "a..b", &"x".repeat(257)]
        {
            assert!(checked(json!({name: string})).is_err(), "{name}");
        }
        for odd in [
            json!({}),
            json!({"DataType": "Text", "StringValue": "v"}),
            json!({"DataType": "String.\u{1}", "StringValue": "v"}),
            json!({"DataType": format!("String.{}", "x".repeat(250)), "StringValue": "v"}),
            json!({"DataType": "String"}),
            json!({"DataType": "String", "StringValue": ""}),
            json!({"DataType": "String", "StringValue": "\u{1}"}),
            json!({"DataType": "Number", "StringValue": "one"}),
            json!({"DataType": "Binary", "StringValue": "v"}),
            json!({"DataType": "Binary", "BinaryValue": "?"}),
        ] {
            assert!(checked(json!({"a": odd})).is_err(), "{odd}");
        }
        // Attributes that SQL wrote by hand are left out: XML would change them.
        let odd = json!({"a\u{1}": string, "b": {"DataType": "String.\u{1}", "StringValue": "v"},
            "c": {"DataType": "String", "StringValue": "\u{ffff}"}, "d": string});
        assert_eq!(attributes_of_job(Some(&odd)).keys().collect::<Vec<_>>(), ["d"]);
        let eleven: Map<_, _> = (0..11).map(|n| (format!("a{n}"), string.clone())).collect();
        assert!(checked(Value::Object(eleven)).is_err());
    }

    #[test]
    fn numbers_are_decimal_and_of_38_digits() {
        let check =
            |number: &str| checked(json!({"n": {"DataType": "Number.x", "StringValue": number}}));
        let nines = "9".repeat(38);
        for sound in [
            "0",
            "-0",
            "+5",
            "-5",
            "007",
            "5.",
            ".5",
            "1.50",
            "1e3",
            "1E+3",
            "1e-128",
            "1e126",
            "-1e126",
            "10e125",
            "0.1e127",
            "0e999999",
            "1234567890.12345678901234567890",
            &nines,
            &format!("{nines}000"),
            &format!("0.000{nines}"),
            &format!("{nines}e88"),
            &format!("1{}", "0".repeat(126)),
        ] {
            let checked = check(sound).unwrap_or_else(|error| panic!("{sound}: {error}"));
            assert_eq!(
                checked["n"].value,
                AttributeValue::Text(sound.to_owned()),
                "as it was sent"
            );
        }
        for odd in [
            "one",
            "nan",
            "NaN",
            "inf",
            "-infinity",
            "0x1f",
            "1_000",
            "1,5",
            " 5",
            "5 ",
            "5\n",
            "+-5",
            "--5",
            "+",
            ".",
            "e5",
            "1e",
            "1e1.5",
            "1e 5",
            "\u{661}",
            "\u{ff11}",
        ] {
            let error = check(odd).unwrap_err();
            assert!(error.message.contains("Can't cast the value"), "{odd}: {error}");
        }
        for far in [
            "1.1e126",
            "2e126",
            "1e127",
            "9e-129",
            "1e-129",
            "1e99999999999999999",
            &format!("{nines}9"),
            &format!("{nines}e89"),
            &format!("0.{nines}1"),
        ] {
            assert!(check(far).is_err(), "{far}");
        }
        let far = check("1e127").unwrap_err();
        assert!(
            far.message.ends_with("at most 38 digits and be between 10^-128 and 10^126."),
            "{far}"
        );
        // An attribute that is stored already is given out all the same.
        let stored = json!({"n": {"DataType": "Number", "StringValue": "nan"}});
        assert_eq!(attributes_of_job(Some(&stored)).len(), 1);
    }

    #[test]
    fn ids_are_short_and_visible() {
        assert!(check_id("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ9", "MessageGroupId").is_ok());
        for odd in ["", "a b", "\u{e9}", "\n", &"x".repeat(129)] {
            assert!(check_id(odd, "MessageGroupId").is_err(), "{odd}");
        }
    }
}

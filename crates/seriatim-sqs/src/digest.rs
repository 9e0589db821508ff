//! The MD5 sums that SDKs compare: of a body, and of attributes.

use md5::{Digest, Md5};

use crate::message::{Attribute, AttributeValue};

/// The MD5 sum of a body, in hexadecimal digits.
pub(crate) fn of_body(body: &str) -> String {
    hex(&Md5::digest(body))
}

/// The MD5 sum of attributes, in the order of their names. Each attribute adds its name, its type,
/// one byte for the kind of its value, and its value. The length precedes each name, type and
/// value.
pub(crate) fn of_attributes<'a>(
    attributes: impl IntoIterator<Item = (&'a String, &'a Attribute)>,
) -> String {
    let mut sum = Md5::new();
    for (name, attribute) in attributes {
        add(&mut sum, name.as_bytes());
        add(&mut sum, attribute.data_type.as_bytes());
        match &attribute.value {
            AttributeValue::Text(text) => {
                sum.update([1]);
                add(&mut sum, text.as_bytes());
            }
            AttributeValue::Bytes(bytes) => {
                sum.update([2]);
                add(&mut sum, bytes);
            }
        }
    }
    hex(&sum.finalize())
}

fn add(sum: &mut Md5, bytes: &[u8]) {
    // A request has a few megabytes at most.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    sum.update(length.to_be_bytes());
    sum.update(bytes);
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn text(data_type: &str, value: &str) -> Attribute {
        let value = AttributeValue::Text(value.to_owned());
        Attribute { data_type: data_type.to_owned(), value }
    }

    /// Sums that AWS answered.
    #[test]
    fn sums_are_those_of_aws() {
        assert_eq!(of_body("msg"), "6e2baaf3b97dbeef01c0043275f9a0e7");
        let one = BTreeMap::from([(String::from("Foo"), text("String", "Bar"))]);
        assert_eq!(of_attributes(&one), "ae7155c6026991b6d54b11589678bf9c");
        let three = [("Hello", "There"), ("General", "Kenobi"), ("Help.Me", "Me")];
        let three: BTreeMap<_, _> = three
            .into_iter()
            .map(|(name, value)| (name.to_owned(), text("String", value)))
            .collect();
        assert_eq!(of_attributes(&three), "4c360f3fdafd970e05fae2f149d997f5");
    }
}

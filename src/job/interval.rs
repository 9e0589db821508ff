//! A time as the SQL functions of settings take and return it.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time in whole milliseconds: `1500 ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval(pub(crate) Duration);

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{} ms", self.0.as_millis()))
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let ms = text.strip_suffix(" ms").and_then(|ms| ms.parse().ok());
        let ms = ms.ok_or_else(|| D::Error::custom(format!("{text:?} is no time in ms")))?;
        Ok(Self(Duration::from_millis(ms)))
    }
}

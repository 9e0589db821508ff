//! Ids of messages: UUIDs that name a job and the time of its enqueue, so that an operator finds
//! the job of a message.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use uuid::{Builder, Uuid, Variant, Version};

/// Bits of the job's id; the rest of a UUID is for the time, its version and its variant.
const JOB_BITS: u32 = 62;
/// The lower bits of the time stand behind the version.
const TIME_LOW_BITS: u32 = 12;

/// The id of a message, as SQS clients see it. It names a job, and when that was enqueued: after an
/// asynchronous failover another job may have the same number.
///
/// It is a UUID of version 8: 60 bits are the time, in microseconds since 1970, and the last 62 the
/// number of the job. It is no secret: who knows it can do nothing with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId(Uuid);

/// A text is not the id of a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is no id of a message, such as 00063d1f-4a2b-8c00-8000-000000001267")]
pub struct NoMessageId;

impl MessageId {
    pub(crate) fn new(job: i64, enqueued_us: i64) -> Self {
        let job = u128::from(job.cast_unsigned() & (u64::MAX >> (64 - JOB_BITS)));
        let time = u128::from(enqueued_us.cast_unsigned() & (u64::MAX >> 4));
        let (high, low) = (time >> TIME_LOW_BITS, time & ((1 << TIME_LOW_BITS) - 1));
        let bytes = ((high << 80) | (low << 64) | job).to_be_bytes();
        Self(Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// Returns the id of the job, if the message is one of this server's. Whether the job is there,
    /// and is the one that was meant, says [`is_of`](Self::is_of).
    pub fn job(self) -> i64 {
        // 62 bits are no more than a number has.
        i64::try_from(self.0.as_u128() & ((1 << JOB_BITS) - 1)).unwrap_or_default()
    }

    /// Returns whether this is the id of the job that was enqueued at that time.
    pub fn is_of(self, job: i64, enqueued_at: DateTime<Utc>) -> bool {
        self == Self::new(job, enqueued_at.timestamp_micros())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MessageId {
    type Err = NoMessageId;

    fn from_str(text: &str) -> Result<Self, NoMessageId> {
        let id = Uuid::try_parse(text).map_err(|_| NoMessageId)?;
        let is_own = id.get_version() == Some(Version::Custom);
        (is_own && id.get_variant() == Variant::RFC4122).then_some(Self(id)).ok_or(NoMessageId)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_uuid_of_version_8_is_the_id_of_a_message() {
        for odd in ["", "7", "q", "f81d4fae-7dec-41d0-a765-00a0c91e6bf6"] {
            assert_eq!(odd.parse::<MessageId>(), Err(NoMessageId), "{odd}");
        }
        let example = NoMessageId.to_string();
        let example = example.rsplit(' ').next().unwrap().parse::<MessageId>().unwrap();
        assert_eq!(example.job(), 4711);
    }

    proptest! {
        #[test]
        fn an_id_names_its_job_and_no_other(job in 1..1_i64 << JOB_BITS, us in 0..1_i64 << 52) {
            let id = MessageId::new(job, us);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.job(), job);
            let at = DateTime::from_timestamp_micros(us).unwrap();
            prop_assert!(id.is_of(job, at));
            prop_assert!(!id.is_of(job + 1, at));
            prop_assert!(!id.is_of(job, at + chrono::TimeDelta::microseconds(1)));
        }

        #[test]
        fn any_number_and_time_make_an_id(job in any::<i64>(), us in any::<i64>()) {
            let id = MessageId::new(job, us);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
}

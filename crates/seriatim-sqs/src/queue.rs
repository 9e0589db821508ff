//! A queue as SQS clients see it: its name and its attributes.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use seriatim::admin::{DedupScope, QueueSettings};

use crate::error::{Code, SqsError};
use crate::input::Texts;
use crate::redrive::{RedriveAllowPolicy, RedrivePolicy};

const SUFFIX: &str = ".fifo";
const NAME_LIMIT: usize = 80;

/// A message of a queue without a limit of receives is received until it expires.
const NO_LIMIT: u32 = i32::MAX.unsigned_abs();

/// Settings that are numbers: the least, the most, and the default.
const NUMBERS: [(&str, i64, i64, Option<i64>); 6] = [
    ("DelaySeconds", 0, 900, Some(0)),
    ("MaximumMessageSize", 1024, 1_048_576, Some(1_048_576)),
    ("MessageRetentionPeriod", 60, 1_209_600, Some(345_600)),
    ("ReceiveMessageWaitTimeSeconds", 0, 20, Some(0)),
    ("VisibilityTimeout", 0, 43_200, Some(30)),
    ("KmsDataKeyReusePeriodSeconds", 60, 86_400, None),
];

/// Settings that are one of some words; the first is the default.
const WORDS: [(&str, &[&str]); 5] = [
    ("SqsManagedSseEnabled", &["true", "false"]),
    ("FifoQueue", &["true"]),
    ("ContentBasedDeduplication", &["false", "true"]),
    ("DeduplicationScope", &["queue", "messageGroup"]),
    ("FifoThroughputLimit", &["perQueue", "perMessageGroupId"]),
];

/// Settings that are text, and are removed by an empty one.
const TEXTS: [&str; 4] = ["Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId"];

/// The most bytes of such a text, as of a policy with AWS.
const TEXT_LIMIT: usize = 8192;

/// Settings that only FIFO queues have.
const OF_FIFO: [&str; 4] =
    ["FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"];

/// Attributes that are counted or noted, and cannot be set.
const READ_ONLY: [&str; 6] = [
    "QueueArn",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
];

/// A queue as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    pub(crate) name: String,
    /// The attributes that were set.
    pub(crate) attributes: Texts,
    pub(crate) tags: Texts,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) modified_at: DateTime<Utc>,
}

impl Queue {
    pub(crate) fn is_fifo(&self) -> bool {
        is_fifo(&self.name)
    }

    /// Returns a setting: as it was set, or its default.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        // One sort of encryption goes without the other.
        if name == "SqsManagedSseEnabled" && self.attributes.contains_key("KmsMasterKeyId") {
            return Some(String::from("false"));
        }
        self.attributes.get(name).cloned().or_else(|| default_of(name, self.is_fifo()))
    }

    /// Returns a setting that is a number.
    pub(crate) fn number(&self, name: &str) -> i64 {
        self.setting(name).and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn dedups_by_content(&self) -> bool {
        self.setting("ContentBasedDeduplication").is_some_and(|by_content| by_content == "true")
    }

    /// Returns whether a deduplication id counts in its group alone.
    pub(crate) fn dedups_by_group(&self) -> bool {
        self.setting("DeduplicationScope").is_some_and(|scope| scope == "messageGroup")
    }

    /// Returns whether a queue of this account may name it as its dead-letter queue.
    pub(crate) fn takes_dead_letters_of(&self, account: &str, source: &str) -> bool {
        let policy = self
            .attributes
            .get("RedriveAllowPolicy")
            .map(|policy| RedriveAllowPolicy::read(policy));
        policy.and_then(Result::ok).is_none_or(|policy| policy.allows(account, source))
    }

    /// Returns the settings that the other one does not have like this, as they are here; an empty
    /// text for one that is not set here and has no default.
    pub(crate) fn unlike(&self, other: &Self) -> Texts {
        let names = differing(&self.attributes, &other.attributes);
        names.map(|name| (name.clone(), self.setting(name).unwrap_or_default())).collect()
    }

    /// Returns new settings with what they imply: without its key a queue is not encrypted.
    pub(crate) fn implied(&self, mut given: Texts) -> Texts {
        let is_removed = given.get("KmsMasterKeyId").is_some_and(String::is_empty);
        if is_removed && self.attributes.contains_key("KmsMasterKeyId") {
            let enabled = given.entry(String::from("SqsManagedSseEnabled"));
            enabled.or_insert_with(|| String::from("false"));
        }
        given
    }

    /// Returns the settings by name, without what is counted.
    pub(crate) fn settings(&self) -> Texts {
        let numbers = NUMBERS.iter().map(|(name, ..)| *name);
        let names = numbers.chain(WORDS.iter().map(|(name, _)| *name)).chain(TEXTS);
        // The period of the key counts.
        let has_key = self.attributes.contains_key("KmsMasterKeyId");
        let names = names.filter(|name| has_key || *name != "KmsDataKeyReusePeriodSeconds");
        names.filter_map(|name| Some((name.to_owned(), self.setting(name)?))).collect()
    }
}

/// Returns the names of attributes that were not set alike.
pub(crate) fn differing<'a>(one: &'a Texts, other: &'a Texts) -> impl Iterator<Item = &'a String> {
    one.keys().chain(other.keys()).filter(|name| one.get(*name) != other.get(*name))
}

pub(crate) fn is_fifo(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// Returns whether an attribute is counted or noted, and cannot be set.
pub(crate) fn is_read_only(attribute: &str) -> bool {
    READ_ONLY.contains(&attribute)
}

/// Returns whether there is such an attribute.
pub(crate) fn is_known(attribute: &str) -> bool {
    is_setting(attribute) || is_read_only(attribute)
}

fn is_setting(name: &str) -> bool {
    NUMBERS.iter().any(|(known, ..)| *known == name)
        || WORDS.iter().any(|(known, _)| *known == name)
        || TEXTS.contains(&name)
}

fn default_of(name: &str, fifo: bool) -> Option<String> {
    if !fifo && OF_FIFO.contains(&name) {
        return None;
    }
    let number =
        NUMBERS.iter().find(|(known, ..)| *known == name).and_then(|(.., default)| *default);
    let word =
        || WORDS.iter().find(|(known, _)| *known == name).map(|(_, words)| words[0].to_owned());
    number.map(|number| number.to_string()).or_else(word)
}

/// Refuses a name that no queue has. `FifoQueue` and the suffix must agree.
pub(crate) fn check_name(name: &str, attributes: &Texts) -> Result<(), SqsError> {
    let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
    let is_sound = !stem.is_empty()
        && name.len() <= NAME_LIMIT
        && stem.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let refused = |message: &str| Err(SqsError::new(Code::InvalidParameterValue, message));
    let asks_for_fifo = attributes.get("FifoQueue").is_some_and(|fifo| fifo == "true");
    if asks_for_fifo && (!is_sound || !is_fifo(name)) {
        return refused(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or \
             underscores, must end with .fifo suffix and be 1 to 80 in length.",
        );
    } else if !is_sound || (is_fifo(name) && !asks_for_fifo) {
        return refused(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        );
    }
    Ok(())
}

/// Refuses settings that a queue of this name cannot have.
pub(crate) fn check_settings(name: &str, given: &Texts) -> Result<(), SqsError> {
    for (setting, value) in given {
        check_setting(is_fifo(name), setting, value)?;
    }
    let is_sse = given.get("SqsManagedSseEnabled").is_some_and(|enabled| enabled == "true");
    if is_sse && given.get("KmsMasterKeyId").is_some_and(|key| !key.is_empty()) {
        let message = "You can use one type of server-side encryption (SSE) at one time. You can \
                       either enable KMS SSE or SQS SSE.";
        return Err(SqsError::new(Code::InvalidAttributeName, message));
    }
    Ok(())
}

fn check_setting(fifo: bool, name: &str, value: &str) -> Result<(), SqsError> {
    if !fifo && ["DeduplicationScope", "FifoThroughputLimit"].contains(&name) {
        let message = format!("You can specify the {name} only when FifoQueue is set to true.");
        return Err(SqsError::new(Code::InvalidAttributeName, message));
    }
    if !is_setting(name) || (!fifo && OF_FIFO.contains(&name)) {
        let message = format!("Unknown Attribute {name}.");
        return Err(SqsError::new(Code::InvalidAttributeName, message));
    }
    let number = NUMBERS.iter().find(|(known, ..)| *known == name);
    let words = WORDS.iter().find(|(known, _)| *known == name);
    let is_sound = match (number, words) {
        (Some((_, least, most, _)), _) => {
            value.parse().is_ok_and(|number: i64| (*least..=*most).contains(&number))
        }
        (_, Some((_, words))) => words.contains(&value),
        _ if value.len() > TEXT_LIMIT => false,
        _ if name == "KmsMasterKeyId" || value.is_empty() => true,
        _ if name == "RedrivePolicy" => {
            RedrivePolicy::read(value)?;
            true
        }
        _ if name == "RedriveAllowPolicy" => {
            RedriveAllowPolicy::read(value)?;
            true
        }
        _ => serde_json::from_str::<Value>(value).is_ok_and(|value| value.is_object()),
    };
    if is_sound {
        return Ok(());
    }
    let message = format!("Invalid value for the parameter {name}.");
    Err(SqsError::new(Code::InvalidAttributeValue, message))
}

/// Returns settings as AWS shows them: `true` for `True`, numbers without a sign and zeros before
/// them, and that of a redrive policy is no text.
pub(crate) fn normal(mut settings: Texts) -> Texts {
    for (name, words) in WORDS {
        if words.contains(&"true")
            && let Some(text) = settings.get_mut(name)
        {
            text.make_ascii_lowercase();
        }
    }
    for (name, ..) in NUMBERS {
        if let Some(text) = settings.get_mut(name)
            && let Ok(number) = text.parse::<i64>()
        {
            *text = number.to_string();
        }
    }
    if let Some(text) = settings.get_mut("RedrivePolicy")
        && let Ok(mut policy) = serde_json::from_str::<Value>(text)
        && let Some(receives) = policy["maxReceiveCount"].as_str()
        && let Ok(receives) = receives.parse::<u32>()
    {
        policy["maxReceiveCount"] = receives.into();
        *text = policy.to_string();
    }
    settings
}

/// Returns what the settings given mean for the jobs of the queue.
pub(crate) fn job_settings(name: &str, given: &Texts, is_new: bool) -> QueueSettings {
    let mut settings = QueueSettings::new(name);
    if let Some(delay) = given.get("DelaySeconds").and_then(|delay| delay.parse().ok()) {
        settings = settings.delay(Duration::from_secs(delay));
    }
    if let Some(by_content) = given.get("ContentBasedDeduplication") {
        settings = settings.dedup_by_content(by_content == "true");
    }
    if let Some(scope) = given.get("DeduplicationScope") {
        let of_group = scope == "messageGroup";
        settings =
            settings.dedup_scope(if of_group { DedupScope::Group } else { DedupScope::Queue });
    }
    if is_new {
        settings = settings.strict_visibility(true);
    }
    match given.get("RedrivePolicy").map(|policy| RedrivePolicy::read(policy)) {
        Some(Ok(policy)) => settings.max_attempts(policy.receives).dead_letter_queue(policy.target),
        Some(Err(_)) => settings.max_attempts(NO_LIMIT).dead_letter_queue(None),
        None if is_new => settings.max_attempts(NO_LIMIT),
        None => settings,
    }
}

/// Returns the settings of jobs as they were before SQS clients saw the queue.
pub(crate) fn reset_settings(name: &str) -> QueueSettings {
    QueueSettings::new(name)
        .delay(None)
        .dedup_by_content(false)
        .dedup_scope(DedupScope::Queue)
        .max_attempts(None)
        .dead_letter_queue(None)
        .strict_visibility(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn settings_are_compared_as_aws_shows_them() {
        let policy =
            |receives| format!(r#"{{"deadLetterTargetArn":"a","maxReceiveCount":{receives}}}"#);
        let (text, number) = (policy("\"3\""), policy("3"));
        let given = [("DelaySeconds", "+007"), ("RedrivePolicy", &*text), ("FifoQueue", "True")];
        let shown = [("DelaySeconds", "7"), ("RedrivePolicy", &*number), ("FifoQueue", "true")];
        assert_eq!(normal(texts(&given)), texts(&shown));
    }

    #[test]
    fn the_suffix_and_the_kind_agree() {
        let fifo = texts(&[("FifoQueue", "true")]);
        for name in ["q", "Q_-9", &"x".repeat(80)] {
            assert!(check_name(name, &Texts::new()).is_ok(), "{name}");
        }
        for name in ["", ".fifo", "a.b", "a b", "q.fifo", "q.fifo.fifo", "\u{e9}", &"x".repeat(81)]
        {
            assert!(check_name(name, &Texts::new()).is_err(), "{name}");
        }
        assert!(check_name("q.fifo", &fifo).is_ok());
        assert!(check_name("q", &fifo).is_err());
    }

    #[test]
    fn settings_have_ranges_and_kinds() {
        let check = |name, value| check_settings("q", &texts(&[(name, value)]));
        let check_fifo = |name, value| check_settings("q.fifo", &texts(&[(name, value)]));
        for (name, value) in [
            ("DelaySeconds", "900"),
            ("VisibilityTimeout", "0"),
            ("Policy", "{}"),
            ("Policy", ""),
            ("RedrivePolicy", ""),
            ("RedriveAllowPolicy", ""),
            ("RedriveAllowPolicy", r#"{"redrivePermission":"denyAll"}"#),
            (
                "RedrivePolicy",
                r#"{"deadLetterTargetArn":"arn:aws:sqs:r:0:d","maxReceiveCount":"3"}"#,
            ),
        ] {
            assert!(check(name, value).is_ok(), "{name} {value}");
        }
        for (name, value) in [
            ("DelaySeconds", "901"),
            ("DelaySeconds", "x"),
            ("VisibilityTimeout", "-1"),
            ("MaximumMessageSize", "1023"),
            ("Policy", "x"),
            ("Policy", &format!("{{\"a\":\"{}\"}}", "x".repeat(TEXT_LIMIT))),
            ("RedriveAllowPolicy", "{}"),
            ("RedrivePolicy", "x"),
            ("RedrivePolicy", r#"{"maxReceiveCount":3}"#),
            ("RedrivePolicy", r#"{"deadLetterTargetArn":"d","maxReceiveCount":0}"#),
            ("QueueArn", "x"),
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "true"),
        ] {
            assert!(check(name, value).is_err(), "{name} {value}");
        }
        assert!(check_fifo("ContentBasedDeduplication", "true").is_ok());
        assert!(check_fifo("FifoQueue", "false").is_err());
        let both = [("SqsManagedSseEnabled", "true"), ("KmsMasterKeyId", "alias/aws/sqs")];
        assert!(check_settings("q", &texts(&both)).is_err());
        assert!(check_fifo("DeduplicationScope", "group").is_err());
    }
}

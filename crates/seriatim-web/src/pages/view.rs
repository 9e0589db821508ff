//! The values that several pages write: times, counts, pauses, choices of a form.

use chrono::{DateTime, SecondsFormat, Utc};
use seriatim::admin::GroupOverview;
use seriatim::explain::BoundedCount;

use crate::data::{age, shown, span, thousands};

/// A time: as a machine reads it, and from now.
pub(crate) struct When {
    pub(crate) iso: String,
    pub(crate) words: String,
}

impl When {
    pub(crate) fn new(at: DateTime<Utc>) -> Self {
        let ahead = (at - Utc::now()).num_milliseconds();
        Self {
            iso: at.to_rfc3339_opts(SecondsFormat::Secs, true),
            words: if ahead > 0 {
                format!("in {}", span(ahead))
            } else {
                format!("{} ago", age(at))
            },
        }
    }
}

pub(crate) fn bounded(count: BoundedCount) -> String {
    format!("{}{}", thousands(count.count), if count.or_more { "+" } else { "" })
}

/// A pause.
pub(crate) struct PauseView {
    pub(crate) since: When,
    /// Empty if none was given.
    pub(crate) reason: String,
    /// When it ends by itself.
    pub(crate) ends: Option<When>,
    /// The job that asked for it as a rest.
    pub(crate) rested_by: Option<i64>,
}

impl PauseView {
    pub(crate) fn new(
        since: DateTime<Utc>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
        rested_by: Option<i64>,
    ) -> Self {
        Self {
            since: When::new(since),
            reason: reason.map(shown).unwrap_or_default(),
            ends: until.map(When::new),
            rested_by,
        }
    }

    pub(crate) fn of_group(group: &GroupOverview) -> Option<Self> {
        let since = group.paused_at?;
        let reason = group.pause_reason.as_deref();
        Some(Self::new(since, reason, group.paused_until, group.rested_by))
    }
}

/// A choice of a form.
pub(crate) struct Choice {
    pub(crate) word: &'static str,
    pub(crate) label: &'static str,
    pub(crate) chosen: bool,
}

pub(crate) fn choices(all: &[(&'static str, &'static str)], chosen: &str) -> Vec<Choice> {
    let choice = |&(word, label)| Choice { word, label, chosen: word == chosen };
    all.iter().map(choice).collect()
}

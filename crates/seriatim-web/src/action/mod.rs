//! The actions on the page: changes of the library, and those that the page alone has.

mod act;
mod buttons;
mod dead_letters;
mod effect;
mod pending;
mod schedule;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use seriatim::admin::Change;

use crate::config::Access;
use crate::data::{LetterFilter, SoFar};

pub(crate) use crate::action::act::act;
pub(crate) use crate::action::buttons::{Button, Buttons, attribute};
pub(crate) use crate::action::effect::Effect;
pub(crate) use crate::action::schedule::SetSchedule;

/// An action and what it is about. JSON has its name in `action`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Action {
    Change(Change),
    Page(PageAction),
}

/// An action that only the page has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PageAction {
    /// Redrives dead letters by a filter; with an empty one all.
    RedriveMatching {
        matching: LetterFilter,
        /// The sums of earlier answers: a change of many jobs comes in parts.
        #[serde(default)]
        so_far: SoFar,
    },
    DiscardMatching {
        matching: LetterFilter,
        #[serde(default)]
        so_far: SoFar,
    },
    /// Makes a schedule, or changes the one of its name.
    SetSchedule(SetSchedule),
}

impl From<Change> for Action {
    fn from(change: Change) -> Self {
        Self::Change(change)
    }
}

impl From<PageAction> for Action {
    fn from(action: PageAction) -> Self {
        Self::Page(action)
    }
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let of_page = matches!(
            value["action"].as_str(),
            Some("redrive_matching" | "discard_matching" | "set_schedule")
        );
        let action = if of_page {
            serde_json::from_value(value).map(Self::Page)
        } else {
            serde_json::from_value(value).map(Self::Change)
        };
        action.map_err(D::Error::custom)
    }
}

impl Action {
    /// Returns the role that it needs.
    pub(crate) fn needs(&self) -> Access {
        match self {
            Self::Change(
                Change::Purge { .. }
                | Change::PurgeEverything { .. }
                | Change::ConfigureQueue { .. }
                | Change::SetGroupPolicy { .. },
            ) => Access::Admin,
            _ => Access::Operator,
        }
    }

    /// Returns what it is called on its button.
    pub(crate) fn label(&self) -> &'static str {
        let change = match self {
            Self::Page(PageAction::RedriveMatching { .. }) => return "Redrive all of these",
            Self::Page(PageAction::DiscardMatching { .. }) => return "Discard all of these",
            Self::Page(PageAction::SetSchedule(_)) => return "Set schedule",
            Self::Change(change) => change,
        };
        match change {
            Change::Cancel { .. } => "Cancel",
            Change::Retry { .. } => "Retry",
            Change::Skip { .. } => "Skip",
            Change::RunNow { .. } => "Run now",
            Change::FireSchedule { .. } => "Make a job now",
            Change::Abort { .. } => "Abort",
            Change::MoveJobs { .. } => "Move",
            Change::Pause { .. } | Change::PauseSchedule { .. } => "Pause",
            Change::Resume { .. } | Change::ResumeSchedule { .. } => "Resume",
            Change::Unhalt { .. } => "Unhalt",
            Change::Park { .. } => "Park",
            Change::Purge { .. } => "Purge",
            Change::PurgeEverything { .. } => "Purge everything",
            Change::RedriveJobs { ids } if ids.is_empty() => "Redrive picked",
            Change::DiscardJobs { ids } if ids.is_empty() => "Discard picked",
            Change::Redrive { .. } | Change::RedriveParked { .. } | Change::RedriveJobs { .. } => {
                "Redrive"
            }
            Change::DiscardParked { .. } | Change::DiscardJobs { .. } => "Discard",
            Change::StartMoveTask(_) => "Start move task",
            Change::CancelMoveTask { .. } => "Cancel move task",
            Change::ReleaseNode { .. } => "Release",
            Change::RemoveSchedule { .. } => "Remove",
            Change::AbandonBatch { .. } => "Abandon",
            Change::SetKeyLimit { .. } => "Limit key",
            _ => "Change",
        }
    }
}

/// The body of a request for an action.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    #[serde(flatten)]
    pub(crate) action: Action,
    /// Why; recorded with the change.
    #[serde(default)]
    pub(crate) reason: String,
    /// Says what would be done, and does nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
}

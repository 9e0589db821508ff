//! The actions of an operator on the page: each action's preview, its right, its effect in words.

mod act;
mod batch;
mod buttons;
mod change;
mod dead_letters;
mod effect;
mod job;
mod lane;
mod move_task;
mod node;
mod parked;
mod purge;
mod schedule;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::config::Access;
use crate::data::{LetterFilter, SoFar};

pub(crate) use crate::action::act::act;
pub(crate) use crate::action::buttons::{Button, Buttons, attribute};
pub(crate) use crate::action::effect::Effect;
pub(crate) use crate::action::move_task::StartMoveTask;
pub(crate) use crate::action::schedule::SetSchedule;

/// An action and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Action {
    Cancel {
        job: i64,
    },
    Retry {
        job: i64,
    },
    Skip {
        job: i64,
    },
    RunNow {
        job: i64,
    },
    Abort {
        job: i64,
    },
    /// Pauses a group, or the whole queue; the pause ends by itself at `until`.
    Pause {
        queue: String,
        group: Option<String>,
        until: Option<DateTime<Utc>>,
    },
    Resume {
        queue: String,
        group: Option<String>,
    },
    Unhalt {
        queue: String,
        group: String,
    },
    Park {
        queue: String,
        group: String,
    },
    Purge {
        queue: String,
        group: Option<String>,
    },
    PurgeEverything {
        queue: String,
    },
    /// Redrives jobs that failed in a queue, the oldest first.
    Redrive {
        queue: String,
        limit: Option<u32>,
    },
    /// Redrives the jobs that are parked with a failed one; without `job` all of the group.
    RedriveParked {
        queue: String,
        group: String,
        job: Option<i64>,
    },
    DiscardParked {
        queue: String,
        group: String,
        job: Option<i64>,
    },
    /// Redrives dead letters by their ids.
    RedriveJobs {
        jobs: Vec<i64>,
    },
    DiscardJobs {
        jobs: Vec<i64>,
    },
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
    /// Moves what waits in a queue.
    StartMoveTask(StartMoveTask),
    CancelMoveTask {
        queue: String,
        task: i64,
    },
    ReleaseNode {
        node: String,
    },
    /// Makes a schedule, or changes the one of its name.
    SetSchedule(SetSchedule),
    PauseSchedule {
        schedule: String,
    },
    ResumeSchedule {
        schedule: String,
    },
    /// Makes a job of a schedule now.
    FireSchedule {
        schedule: String,
    },
    RemoveSchedule {
        schedule: String,
    },
    /// Gives a batch up.
    AbandonBatch {
        batch: i64,
    },
}

impl Action {
    /// Returns the role that it needs.
    pub(crate) fn needs(&self) -> Access {
        match self {
            Self::Purge { .. } | Self::PurgeEverything { .. } => Access::Admin,
            Self::Cancel { .. }
            | Self::Retry { .. }
            | Self::Skip { .. }
            | Self::RunNow { .. }
            | Self::Abort { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Unhalt { .. }
            | Self::Park { .. }
            | Self::Redrive { .. }
            | Self::RedriveParked { .. }
            | Self::DiscardParked { .. }
            | Self::RedriveJobs { .. }
            | Self::DiscardJobs { .. }
            | Self::RedriveMatching { .. }
            | Self::DiscardMatching { .. }
            | Self::StartMoveTask(_)
            | Self::CancelMoveTask { .. }
            | Self::ReleaseNode { .. }
            | Self::SetSchedule(_)
            | Self::PauseSchedule { .. }
            | Self::ResumeSchedule { .. }
            | Self::FireSchedule { .. }
            | Self::RemoveSchedule { .. }
            | Self::AbandonBatch { .. } => Access::Operator,
        }
    }

    /// Returns what it is called on its button.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Cancel { .. } => "Cancel",
            Self::Retry { .. } => "Retry",
            Self::Skip { .. } => "Skip",
            Self::RunNow { .. } => "Run now",
            Self::FireSchedule { .. } => "Make a job now",
            Self::Abort { .. } => "Abort",
            Self::Pause { .. } | Self::PauseSchedule { .. } => "Pause",
            Self::Resume { .. } | Self::ResumeSchedule { .. } => "Resume",
            Self::Unhalt { .. } => "Unhalt",
            Self::Park { .. } => "Park",
            Self::Purge { .. } => "Purge",
            Self::PurgeEverything { .. } => "Purge everything",
            Self::RedriveJobs { jobs } if jobs.is_empty() => "Redrive picked",
            Self::DiscardJobs { jobs } if jobs.is_empty() => "Discard picked",
            Self::RedriveMatching { .. } => "Redrive all of these",
            Self::DiscardMatching { .. } => "Discard all of these",
            Self::Redrive { .. } | Self::RedriveParked { .. } | Self::RedriveJobs { .. } => {
                "Redrive"
            }
            Self::DiscardParked { .. } | Self::DiscardJobs { .. } => "Discard",
            Self::StartMoveTask(_) => "Start move task",
            Self::CancelMoveTask { .. } => "Cancel move task",
            Self::ReleaseNode { .. } => "Release",
            Self::SetSchedule(_) => "Set schedule",
            Self::RemoveSchedule { .. } => "Remove",
            Self::AbandonBatch { .. } => "Abandon",
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

//! The actions of an operator on the page: each action's preview, its right, its effect in words.

mod act;
mod buttons;
mod dead_letters;
mod effect;
mod move_task;
mod purge;
mod undo;

use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::config::Access;
use crate::data::LetterFilter;
use crate::error::WebError;

pub(crate) use crate::action::act::act;
pub(crate) use crate::action::buttons::{Button, Buttons};
pub(crate) use crate::action::effect::Effect;

/// Bounds the jobs of one redrive of a queue.
const REDRIVE: u32 = 200;
/// Bounds the dead letters that a request names.
const NAMED: usize = 500;

/// An action and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Cancel { job: i64 },
    Retry { job: i64 },
    Skip { job: i64 },
    RunNow { job: i64 },
    Abort { job: i64 },
    PauseGroup { queue: String, group: String, until: Option<DateTime<Utc>> },
    ResumeGroup { queue: String, group: String },
    Unhalt { queue: String, group: String },
    Park { queue: String, group: String },
    PurgeGroup { queue: String, group: String },
    PauseQueue { queue: String, until: Option<DateTime<Utc>> },
    ResumeQueue { queue: String },
    Redrive { queue: String, limit: u32 },
    PurgeQueue { queue: String },
    PurgeEverything { queue: String },
    RedriveParked { queue: String, group: String, job: Option<i64> },
    DiscardParked { queue: String, group: String, job: Option<i64> },
    ReleaseNode { node: String },
    RedriveFailed(Which),
    DiscardFailed(Which),
    StartMoveTask(Move),
    CancelMoveTask { queue: String, task: i64 },
}

/// The parameters of a move task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: String,
    /// `None`: each job to the queue in which it failed.
    pub(crate) to: Option<String>,
    /// `None`: as fast as it goes.
    pub(crate) per_second: Option<u32>,
}

/// The dead letters that an action is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    Named(Vec<i64>),
    Matching(LetterFilter),
}

/// The body of a request for an action.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    pub(crate) queue: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) job: Option<i64>,
    pub(crate) node: Option<String>,
    pub(crate) limit: Option<u32>,
    /// When a pause ends by itself.
    pub(crate) until: Option<DateTime<Utc>>,
    /// The queue that a move task moves to, and the most jobs a second.
    pub(crate) to: Option<String>,
    pub(crate) per_second: Option<u32>,
    pub(crate) task: Option<i64>,
    /// Dead letters by their ids.
    pub(crate) jobs: Option<Vec<i64>>,
    /// Dead letters by a filter; with an empty one all.
    pub(crate) matching: Option<LetterFilter>,
    /// Why; recorded with the change.
    #[serde(default)]
    pub(crate) reason: String,
    /// Says what would be done, and does nothing.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

impl Action {
    pub(crate) fn of_job(job: i64, verb: &str) -> Option<Self> {
        Some(match verb {
            "cancel" => Self::Cancel { job },
            "retry" => Self::Retry { job },
            "skip" => Self::Skip { job },
            "run-now" => Self::RunNow { job },
            "abort" => Self::Abort { job },
            _ => return None,
        })
    }

    pub(crate) fn of_group(queue: String, group: String, ask: &Ask, verb: &str) -> Option<Self> {
        Some(match verb {
            "pause" => Self::PauseGroup { queue, group, until: ask.until },
            "resume" => Self::ResumeGroup { queue, group },
            "unhalt" => Self::Unhalt { queue, group },
            "park" => Self::Park { queue, group },
            "purge" => Self::PurgeGroup { queue, group },
            _ => return None,
        })
    }

    pub(crate) fn of_queue(queue: String, ask: &Ask, verb: &str) -> Option<Self> {
        Some(match verb {
            "pause" => Self::PauseQueue { queue, until: ask.until },
            "resume" => Self::ResumeQueue { queue },
            "redrive" => Self::Redrive { queue, limit: ask.limit.unwrap_or(REDRIVE).min(REDRIVE) },
            "purge" => Self::PurgeQueue { queue },
            "purge-everything" => Self::PurgeEverything { queue },
            _ => return None,
        })
    }

    pub(crate) fn of_parked(
        queue: String,
        group: String,
        job: Option<i64>,
        verb: &str,
    ) -> Option<Self> {
        Some(match verb {
            "redrive" => Self::RedriveParked { queue, group, job },
            "discard" => Self::DiscardParked { queue, group, job },
            _ => return None,
        })
    }

    /// Fails if dead letters are named in two ways, or in none.
    pub(crate) fn of_failed(ask: &Ask, verb: &str) -> Result<Option<Self>, WebError> {
        let which = match (&ask.jobs, &ask.matching) {
            (Some(jobs), None) if (1..=NAMED).contains(&jobs.len()) => Which::Named(jobs.clone()),
            (None, Some(filter)) => Which::Matching(filter.clone()),
            _ => {
                return Err(WebError::BadRequest(format!(
                    "Name 1 to {NAMED} jobs, or give a filter as `matching`."
                )));
            }
        };
        Ok(match verb {
            "redrive" => Some(Self::RedriveFailed(which)),
            "discard" => Some(Self::DiscardFailed(which)),
            _ => None,
        })
    }

    /// Fails if the task to be cancelled is not named.
    pub(crate) fn of_move_task(
        queue: String,
        ask: &Ask,
        verb: &str,
    ) -> Result<Option<Self>, WebError> {
        let unnamed = || WebError::BadRequest(String::from("Name the task."));
        Ok(match verb {
            "start" => Some(Self::StartMoveTask(Move {
                from: queue,
                to: ask.to.clone(),
                per_second: ask.per_second,
            })),
            "cancel" => Some(Self::CancelMoveTask { queue, task: ask.task.ok_or_else(unnamed)? }),
            _ => None,
        })
    }

    /// Returns the role that it needs.
    pub(crate) fn needs(&self) -> Access {
        match self {
            Self::PurgeGroup { .. } | Self::PurgeQueue { .. } | Self::PurgeEverything { .. } => {
                Access::Admin
            }
            _ => Access::Operator,
        }
    }
}

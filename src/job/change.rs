//! A change by an operator, as a value.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::job::error::ConfigureError;
use crate::job::move_task::NewMoveTask;
use crate::job::queue_options::OutOfAttempts;
use crate::job::queue_settings::QueueSettings;

/// A change by an operator, as a value: what to do, and with what.
/// [`Operator::preview`](crate::admin::Operator::preview) shows its
/// [`Effect`](crate::admin::Effect), and
/// [`Operator::apply`](crate::admin::Operator::apply) makes it. The command line and the page make
/// their changes so.
///
/// In JSON the field `action` has the name of the change, and an unknown field is an error:
///
/// ```
/// use seriatim::admin::Change;
///
/// let json = r#"{"action": "pause", "queue": "postings", "group": "account-7"}"#;
/// let change: Change = serde_json::from_str(json).unwrap();
/// let (queue, group) = (String::from("postings"), Some(String::from("account-7")));
/// assert_eq!(change, Change::Pause { queue, group, until: None });
/// ```
///
/// Each has a method of [`Operator`](crate::admin::Operator), which says when it is refused. Only
/// [`Operator::set_schedule`](crate::admin::Operator::set_schedule) has no value here, as a
/// schedule carries a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Change {
    /// [`Operator::cancel`](crate::admin::Operator::cancel).
    Cancel {
        /// The job.
        job: i64,
    },
    /// [`Operator::retry`](crate::admin::Operator::retry).
    Retry {
        /// The job.
        job: i64,
    },
    /// [`Operator::skip`](crate::admin::Operator::skip).
    Skip {
        /// The job.
        job: i64,
    },
    /// [`Operator::run_now`](crate::admin::Operator::run_now).
    RunNow {
        /// The job.
        job: i64,
    },
    /// [`Operator::abort`](crate::admin::Operator::abort).
    Abort {
        /// The job.
        job: i64,
    },
    /// [`Operator::move_jobs`](crate::admin::Operator::move_jobs).
    MoveJobs {
        /// The jobs.
        ids: Vec<i64>,
        /// The queue that they are moved to.
        to: String,
    },
    /// [`Operator::pause_queue`](crate::admin::Operator::pause_queue), or one of its group.
    Pause {
        /// The queue.
        queue: String,
        /// The group; `None`: the whole queue.
        group: Option<String>,
        /// When the pause ends by itself; `None`: never.
        until: Option<DateTime<Utc>>,
    },
    /// [`Operator::resume_queue`](crate::admin::Operator::resume_queue), or of a group.
    Resume {
        /// The queue.
        queue: String,
        /// The group; `None`: the whole queue.
        group: Option<String>,
    },
    /// [`Operator::unhalt_group`](crate::admin::Operator::unhalt_group).
    Unhalt {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// [`Operator::park_group`](crate::admin::Operator::park_group).
    Park {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// [`Operator::purge`](crate::admin::Operator::purge), or of a group.
    Purge {
        /// The queue.
        queue: String,
        /// The group; `None`: the whole queue.
        group: Option<String>,
    },
    /// [`Operator::purge_everything`](crate::admin::Operator::purge_everything).
    PurgeEverything {
        /// The queue.
        queue: String,
    },
    /// [`Operator::redrive`](crate::admin::Operator::redrive).
    Redrive {
        /// The queue.
        queue: String,
        /// The most jobs; `None`: 200.
        limit: Option<u32>,
    },
    /// [`Operator::redrive_jobs`](crate::admin::Operator::redrive_jobs).
    RedriveJobs {
        /// The dead letters.
        ids: Vec<i64>,
    },
    /// [`Operator::discard_jobs`](crate::admin::Operator::discard_jobs).
    DiscardJobs {
        /// The dead letters.
        ids: Vec<i64>,
    },
    /// [`Operator::redrive_parked`](crate::admin::Operator::redrive_parked).
    RedriveParked {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The failed job; `None`: all that is parked in the group.
        job: Option<i64>,
    },
    /// [`Operator::discard_parked`](crate::admin::Operator::discard_parked).
    DiscardParked {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The failed job; `None`: all that is parked in the group.
        job: Option<i64>,
    },
    /// [`Operator::start_move_task`](crate::admin::Operator::start_move_task).
    StartMoveTask(NewMoveTask),
    /// [`Operator::cancel_move_task`](crate::admin::Operator::cancel_move_task).
    CancelMoveTask {
        /// The task.
        task: i64,
    },
    /// [`Operator::release_node`](crate::admin::Operator::release_node).
    ReleaseNode {
        /// The node.
        node: String,
    },
    /// [`Operator::configure_queue`](crate::admin::Operator::configure_queue). A
    /// [`QueueSettings`] becomes one by `Change::try_from(settings)`.
    ConfigureQueue {
        /// The queue.
        queue: String,
        /// The settings that change, as the SQL function `configure_queue` takes them:
        /// `{"delay": "5 s", "max_attempts": null}`. Null resets one to its default.
        settings: Map<String, Value>,
    },
    /// [`Operator::set_key_limit`](crate::admin::Operator::set_key_limit).
    SetKeyLimit {
        /// The queue.
        queue: String,
        /// The limit key.
        key: String,
        /// How many of its groups run at once; `None`: as the queue's settings say.
        limit: Option<u32>,
    },
    /// [`Operator::set_group_policy`](crate::admin::Operator::set_group_policy).
    SetGroupPolicy {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The policy; `None`: its queue's.
        policy: Option<OutOfAttempts>,
    },
    /// [`Operator::pause_schedule`](crate::admin::Operator::pause_schedule).
    PauseSchedule {
        /// The schedule.
        schedule: String,
    },
    /// [`Operator::resume_schedule`](crate::admin::Operator::resume_schedule).
    ResumeSchedule {
        /// The schedule.
        schedule: String,
    },
    /// [`Operator::fire_schedule`](crate::admin::Operator::fire_schedule).
    FireSchedule {
        /// The schedule.
        schedule: String,
    },
    /// [`Operator::remove_schedule`](crate::admin::Operator::remove_schedule).
    RemoveSchedule {
        /// The schedule.
        schedule: String,
    },
    /// [`Operator::abandon_batch`](crate::admin::Operator::abandon_batch).
    AbandonBatch {
        /// The batch.
        batch: i64,
    },
}

impl Change {
    /// Whether a rollback takes the change back: false for a purge, which commits step by step, and
    /// for an abort, which ends a session.
    pub fn is_transactional(&self) -> bool {
        !matches!(self, Self::Abort { .. } | Self::Purge { .. } | Self::PurgeEverything { .. })
    }
}

impl TryFrom<QueueSettings> for Change {
    type Error = ConfigureError;

    fn try_from(settings: QueueSettings) -> Result<Self, ConfigureError> {
        let (queue, document) = settings.check()?;
        let settings = match serde_json::to_value(document) {
            Ok(Value::Object(settings)) => settings,
            // A document is an object of numbers and texts.
            _ => Map::new(),
        };
        Ok(Self::ConfigureQueue { queue, settings })
    }
}

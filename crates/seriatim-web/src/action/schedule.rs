//! Schedules, set from a form.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use seriatim::admin::{Change, StoredSchedule};
use seriatim::{ControlError, NewJob, Overlap, Schedule, ScheduleError};

use crate::action::effect::{Effect, Undo, sentence};
use crate::action::pending::Pending;
use crate::error::WebError;

/// A schedule to make, or to change: its timing is one of the three.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetSchedule {
    pub(crate) schedule: String,
    pub(crate) cron: Option<String>,
    /// The time zone of the cron expression.
    pub(crate) zone: Option<String>,
    /// The seconds between two due times.
    pub(crate) every: Option<u32>,
    /// The only due time, in RFC 3339.
    pub(crate) at: Option<String>,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    /// The name of its jobs.
    pub(crate) job_name: Option<String>,
    /// The data of its jobs, in JSON; `None`: null.
    pub(crate) data: Option<String>,
    /// `last`, `skip`, or as `all:10`; `None`: `last`.
    pub(crate) missed: Option<String>,
    #[serde(default)]
    pub(crate) overlap: Overlap,
}

/// The log has the action, and not the data of jobs.
impl fmt::Debug for SetSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, cron, zone, every, at, queue, group, .. } = self;
        f.debug_struct("SetSchedule")
            .field("schedule", schedule)
            .field("timing", &(cron, zone, every, at))
            .field("queue", queue)
            .field("group", group)
            .finish_non_exhaustive()
    }
}

impl SetSchedule {
    fn new_schedule(&self) -> Result<Schedule, WebError> {
        let Self { schedule: name, cron, zone, every, at, queue, group, job_name, .. } = self;
        let schedule = match (cron, zone, every, at) {
            (Some(spec), Some(zone), None, None) => Schedule::cron(name, spec, zone),
            (None, None, Some(seconds), None) => {
                Schedule::every(name, Duration::from_secs((*seconds).into()))
            }
            (None, None, None, Some(at)) => Schedule::once_at(name, time(at)?),
            _ => {
                return Err(WebError::BadRequest(String::from(
                    "A schedule takes a cron expression with its time zone, or an interval, or a \
                     time: one of the three.",
                )));
            }
        };
        let data = self.data.as_deref().unwrap_or("null");
        let data: &RawValue = serde_json::from_str(data)
            .map_err(|error| WebError::BadRequest(format!("The data is no JSON: {error}.")))?;
        let job = NewJob::new(queue, data);
        let job = group.iter().fold(job, NewJob::group);
        let job = job_name.iter().fold(job, NewJob::name);
        let missed = self.missed.as_deref().unwrap_or("last").parse();
        let missed = missed.map_err(|error: ScheduleError| ControlError::from(error))?;
        Ok(schedule.job(job).missed(missed).overlap(self.overlap))
    }
}

fn time(text: &str) -> Result<DateTime<Utc>, WebError> {
    let time = DateTime::parse_from_rfc3339(text).map(|time| time.to_utc());
    time.map_err(|_| {
        WebError::BadRequest(format!("{text:?} is no time such as \"2026-11-24T03:00:00Z\"."))
    })
}

/// Makes a schedule, or changes the one of this name.
pub(crate) async fn set(pending: &Pending<'_>, set: &SetSchedule) -> Result<Effect, WebError> {
    let SetSchedule { schedule: name, queue, .. } = set;
    let schedule = set.new_schedule()?;
    let client = &pending.app.client;
    let mut tx = pending.begin().await?;
    let doubt = client.doubt_about(&mut tx, queue).await?;
    let before = client.schedule(&mut *tx, name).await?;
    pending.operator.set_schedule(&mut tx, schedule).await?;
    let stored: Option<StoredSchedule> = client.schedule(&mut *tx, name).await?;
    let stored = stored.ok_or_else(|| ControlError::NoSuchSchedule { schedule: name.clone() })?;
    let replaced = before.as_ref().map(|before| {
        format!(
            "It replaces the one that was there ({}), with its job: what is left empty has its \
             default.",
            before.timing
        )
    });
    let sentences = [Some(sentence(&stored.to_string())), replaced, doubt.as_deref().map(sentence)];
    let message = sentences.into_iter().flatten().collect::<Vec<_>>().join(" ");
    // The job of before is not read back.
    let remove = || Change::RemoveSchedule { schedule: name.clone() };
    let undo = before.is_none().then(|| Undo::new(remove(), pending.taken_back()));
    pending.end(tx, Effect { undo, ..Effect::said(message) }).await
}

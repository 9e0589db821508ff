//! The event of an ended attempt, for the application's hook.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::job::caught::caught;
use crate::job::job::Failure;
use crate::job::json::{optional_seconds, seconds};
use crate::job::outcome::EndedAs;

/// An ended attempt, after the commit of its outcome ([`ProcessorBuilder::on_event`]). Never the
/// job's data. Its durations are seconds in JSON.
///
/// [`ProcessorBuilder::on_event`]: crate::ProcessorBuilder::on_event
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// The job's queue.
    pub queue: String,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Its id.
    pub job: i64,
    /// Its name.
    pub name: Option<String>,
    /// The producer's own id of the job.
    pub reference: Option<String>,
    /// The number of the attempt, from 1; 0 if the job ended before its first one.
    pub attempt: u32,
    /// The recorded outcome.
    pub outcome: EndedAs,
    /// Why the attempt did not succeed: for [`EndedAs::Retried`], [`EndedAs::Failed`] and
    /// [`EndedAs::Expired`].
    pub failure: Option<Failure>,
    /// The delay before the next attempt: for [`EndedAs::Retried`] and
    /// [`EndedAs::Snoozed`].
    #[serde(serialize_with = "optional_seconds")]
    pub retry_in: Option<Duration>,
    /// How long layers and handler ran; `None` if the job ended without its handler.
    #[serde(serialize_with = "optional_seconds")]
    pub duration: Option<Duration>,
    /// How long the job waited for its place in its group
    /// ([`ActiveJob::lane_wait`](crate::ActiveJob::lane_wait)).
    #[serde(serialize_with = "seconds")]
    pub lane_wait: Duration,
    /// How long the job waited for a slot
    /// ([`ActiveJob::slot_wait`](crate::ActiveJob::slot_wait)).
    #[serde(serialize_with = "seconds")]
    pub slot_wait: Duration,
}

pub(crate) type EventHook = Arc<dyn Fn(&Event) + Send + Sync>;

/// Calls the hook. A panic of it would end the caller, a worker or the settler.
pub(crate) fn call(hook: &EventHook, event: &Event) {
    if let Err(panic) = caught(|| hook(event)) {
        let (queue, job) = (&*event.queue, event.job);
        tracing::error!(target: "seriatim::node", queue, job, panic, "the hook for events panicked");
    }
}

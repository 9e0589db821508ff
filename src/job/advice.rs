//! Advice about a job or a group that waits: the end of an explanation. Pure.

use crate::job::explanation::{GroupExplanation, JobExplanation, Reason, Unserved};
use crate::job::job::JobStatus;

impl JobExplanation {
    /// Returns what an operator can do about it, in sentences; `None` if it has succeeded, or only
    /// its turn is to come.
    pub fn advice(&self) -> Option<String> {
        advice(&self.reason, Some(self.job), self.unserved.as_ref())
    }
}

impl GroupExplanation {
    /// As [`JobExplanation::advice`]; about parked jobs, if there is nothing else.
    pub fn advice(&self) -> Option<String> {
        let own = advice(&self.reason, self.head, self.unserved.as_ref());
        own.or_else(|| self.parked.as_ref().map(|_| UNPARK.to_owned()))
    }
}

/// How the error of a job begins that was moved: its work is another job's now.
pub(crate) const MOVED_TO: &str = "moved to queue";

const UNPAUSE_KEY: &str = "Call set_key_limit to let groups with this key start.";
const RAISE_KEY_LIMIT: &str = "Wait, or raise the queue's limit_per_key with configure_queue, or \
                               the limit of this key with set_key_limit.";
const UNPARK: &str =
    "Call redrive_parked to queue the parked jobs again, or discard_parked to give them up.";

const SERVE: &str = "Start a processor or a receiver that serves the queue, or correct the name where \
                     its jobs are enqueued.";

fn advice(reason: &Reason, job: Option<i64>, unserved: Option<&Unserved>) -> Option<String> {
    let job = job.map_or_else(|| String::from("it"), |id| format!("job {id}"));
    let advice = match reason {
        Reason::Behind { head, why } => return advice(why, Some(*head), unserved),
        Reason::Running { session, .. } => match session.blocked_by.first() {
            Some(other) => format!(
                "End the transaction of database session {other}, which keeps it from going on, \
                 or abort {job}."
            ),
            None => format!("Abort {job} if it hangs."),
        },
        Reason::Claimed { .. } if unserved.is_none() => format!("Abort {job} if it hangs."),
        Reason::Suspected { .. } if unserved.is_none() => String::from("Wait: it is taken over."),
        Reason::Locked { session, .. } => format!(
            "End the transaction of database session {0}: commit it, or call \
             pg_terminate_backend({0}).",
            session.pid
        ),
        Reason::NotDue { .. } => {
            format!("To make it due at once, run_now {job}; to give it up, skip {job}.")
        }
        Reason::DeadLetter { .. } if unserved.is_none() => {
            format!("Redrive {job} when the cause is fixed, or discard it.")
        }
        Reason::Halted { by: Some(by), .. } => retry_or_skip(&format!("job {by}")),
        Reason::Ended { halts: true, .. } => retry_or_skip(&job),
        Reason::Halted { by: None, .. } => {
            String::from("Call unhalt_group to let the group go on.")
        }
        Reason::Parking { .. } => format!("Wait for maintenance. {UNPARK}"),
        Reason::Parked { .. } | Reason::Ended { parked: true, .. } => UNPARK.to_owned(),
        Reason::GroupPaused { until: None, .. } => {
            String::from("Call resume_group to let the group go on.")
        }
        Reason::QueuePaused { until: None, .. } => {
            String::from("Call resume_queue to let the queue go on.")
        }
        Reason::GroupPaused { rested_by: Some(_), .. } => {
            String::from("It goes on by itself; call resume_group to end the rest now.")
        }
        Reason::QueuePaused { rested_by: Some(_), .. } => {
            String::from("It goes on by itself; call resume_queue to end the rest now.")
        }
        Reason::GroupPaused { .. } => String::from("Wait, or call resume_group to go on now."),
        Reason::QueuePaused { .. } => String::from("Wait, or call resume_queue to go on now."),
        Reason::AtLimit { .. } => {
            String::from("Wait, or raise the queue's in_flight_limit with configure_queue.")
        }
        Reason::AtKeyLimit { limit: Some(0), .. } => UNPAUSE_KEY.to_owned(),
        Reason::AtKeyLimit { .. } => RAISE_KEY_LIMIT.to_owned(),
        Reason::AtRate { .. } => {
            String::from("Wait, or raise the queue's rate with configure_queue.")
        }
        Reason::Spaced { .. } => {
            String::from("Wait, or change the queue's group_spacing with configure_queue.")
        }
        Reason::Ended { status: JobStatus::Cancelled, error: Some(error), .. }
            if error.starts_with(MOVED_TO) =>
        {
            format!(
                "Look at the job that it was moved to; a retry of {job} would do its work twice."
            )
        }
        Reason::Ended { status: JobStatus::Failed | JobStatus::Cancelled, .. } => {
            format!("Retry {job} to queue it again.")
        }
        Reason::Lapsed { queue_paused: true, .. } => {
            String::from("Call resume_queue to let a worker take it over.")
        }
        Reason::Claimed { .. }
        | Reason::Suspected { .. }
        | Reason::Lapsed { .. }
        | Reason::WaitsForTurn { .. }
        | Reason::NotAdopted { .. }
        | Reason::Stranded
        | Reason::Expired { .. }
        | Reason::DeadLetter { .. }
            if unserved.is_some() =>
        {
            SERVE.to_owned()
        }
        Reason::WaitsForTurn { .. } | Reason::NotAdopted { .. } => {
            String::from("Wait, or give the queue more slots.")
        }
        // A claim suspects it, and takes it over a grace later.
        Reason::Lapsed { seconds, .. } if *seconds < 5.0 => {
            String::from("Wait: it is taken over within seconds.")
        }
        Reason::Lapsed { .. } => String::from(
            "See whether the processors of its queue live and have free slots, or whether its \
             receivers still ask.",
        ),
        Reason::Stranded => String::from("Run `seriatim maintain`, or start a processor."),
        Reason::Expired { .. } => String::from("Wait: its turn ends it."),
        Reason::Claimed { .. }
        | Reason::Suspected { .. }
        | Reason::DeadLetter { .. }
        | Reason::Ended { .. }
        | Reason::Nothing => return None,
    };
    Some(advice)
}

fn retry_or_skip(job: &str) -> String {
    format!("Retry {job} when the cause is fixed, or skip it.")
}

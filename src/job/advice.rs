//! Advice about a job or a group that waits: the end of an explanation. Pure.

use crate::job::explanation::{GroupExplanation, JobExplanation, Reason, Unserved};
use crate::job::job::JobStatus;

impl JobExplanation {
    /// Returns what an operator can do about it; `None` if it has succeeded, or only its turn is to
    /// come.
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

const UNPARK: &str = "redrive_parked queues them again, discard_parked gives them up";

fn advice(reason: &Reason, job: Option<i64>, unserved: Option<&Unserved>) -> Option<String> {
    let job = job.map_or_else(|| String::from("it"), |id| format!("job {id}"));
    let start = "start a processor or a receiver that serves the queue, or correct the name where \
                 its jobs are enqueued";
    let advice = match reason {
        Reason::Behind { head, why } => return advice(why, Some(*head), unserved),
        Reason::Running { session, .. } => match session.blocked_by.first() {
            Some(other) => format!(
                "end the transaction of database session {other}, which keeps it from going on, \
                 or abort {job}"
            ),
            None => format!("abort {job} if it hangs"),
        },
        Reason::Claimed { .. } if unserved.is_none() => format!("abort {job} if it hangs"),
        Reason::Suspected { .. } if unserved.is_none() => String::from("nothing, it is taken over"),
        Reason::Locked { session, .. } => format!(
            "end the transaction of database session {0}: commit it, or pg_terminate_backend({0})",
            session.pid
        ),
        Reason::NotDue { .. } => {
            format!("run_now {job} to make it due at once, or skip {job} to give it up")
        }
        Reason::DeadLetter { .. } if unserved.is_none() => {
            format!("mend its cause and redrive {job}, or discard {job} to give it up")
        }
        Reason::Halted { by: Some(by), .. } => {
            format!("mend its cause and retry job {by}, or skip job {by} to go on without it")
        }
        Reason::Halted { by: None, .. } => String::from("unhalt_group lets it go on"),
        Reason::Parking { .. } => format!("wait for maintenance, then: {UNPARK}"),
        Reason::Parked { .. } | Reason::Ended { parked: true, .. } => UNPARK.to_owned(),
        Reason::GroupPaused { until: None, .. } => String::from("unpause_group lets it go on"),
        Reason::QueuePaused { until: None, .. } => String::from("unpause_queue lets it go on"),
        Reason::GroupPaused { .. } => String::from("nothing, or unpause_group lets it go on now"),
        Reason::QueuePaused { .. } => String::from("nothing, or unpause_queue lets it go on now"),
        Reason::AtLimit { .. } => {
            String::from("wait, or raise the queue's in_flight_limit with configure_queue")
        }
        Reason::Ended { status: JobStatus::Cancelled, error: Some(error), .. }
            if error.starts_with(MOVED_TO) =>
        {
            format!(
                "look at the job that it was moved to; a retry of {job} would do its work twice"
            )
        }
        Reason::Ended { status: JobStatus::Failed | JobStatus::Cancelled, .. } => {
            format!("retry {job} to queue it again")
        }
        Reason::Lapsed { queue_paused: true, .. } => {
            String::from("unpause_queue lets a worker take it over")
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
            start.to_owned()
        }
        Reason::WaitsForTurn { .. } | Reason::NotAdopted { .. } => {
            String::from("wait, or give the queue more slots")
        }
        // A claim suspects it, and takes it over a grace later.
        Reason::Lapsed { seconds, .. } if *seconds < 5.0 => {
            String::from("nothing, it is taken over within seconds")
        }
        Reason::Lapsed { .. } => String::from(
            "see whether the processors of its queue live and have free slots, or whether its \
             receivers still ask",
        ),
        Reason::Stranded => String::from("run_maintenance, or wait for a processor's"),
        Reason::Expired { .. } => String::from("nothing, its turn ends it"),
        Reason::Claimed { .. }
        | Reason::Suspected { .. }
        | Reason::DeadLetter { .. }
        | Reason::Ended { .. }
        | Reason::Nothing => return None,
    };
    Some(advice)
}

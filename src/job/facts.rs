//! The facts that were read about a job or a group, and the reason that follows from them. Pure.

use chrono::{DateTime, TimeDelta, Utc};

use crate::job::attempt::AttemptInfo;
use crate::job::explanation::{
    BoundedCount, GroupExplanation, JobExplanation, ParkedJobs, ProcessorInfo, Reason, SessionInfo,
    Unserved,
};
use crate::job::job::JobStatus;

/// The facts of one snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) now: DateTime<Utc>,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    /// The job that was asked about.
    pub(crate) job: Option<JobFacts>,
    /// The claimed job of the group, or its lowest unfinished one. A job without a group is its own
    /// head.
    pub(crate) head: Option<JobFacts>,
    pub(crate) line: Option<LineFacts>,
    pub(crate) queue_paused: Option<Pause>,
    pub(crate) group_paused: Option<Pause>,
    pub(crate) limit: Option<u64>,
    pub(crate) in_flight: u64,
    pub(crate) due_before: u64,
    pub(crate) behind: u64,
    pub(crate) processor: Option<ProcessorInfo>,
    /// The locker that the row of the hold names.
    pub(crate) locked_by: Option<String>,
    /// The locker that the head's own row names.
    pub(crate) head_locked_by: Option<String>,
    /// What processors say of the queue's jobs: their attempts, and the time of their handlers.
    pub(crate) attempts: Option<u32>,
    pub(crate) timeout: Option<TimeDelta>,
    /// Requests to cancel the job that was asked about, and the head.
    pub(crate) job_cancel: Option<DateTime<Utc>>,
    pub(crate) head_cancel: Option<DateTime<Utc>>,
    /// The queues that are served, if this one is not.
    pub(crate) unserved: Option<Vec<String>>,
    pub(crate) parked: u64,
    pub(crate) parked_since: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone)]
pub(crate) struct JobFacts {
    pub(crate) id: i64,
    pub(crate) status: JobStatus,
    pub(crate) attempts: u32,
    pub(crate) forgiven: u32,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) timeout: Option<TimeDelta>,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) started_at: Option<DateTime<Utc>>,
    pub(crate) finished_at: Option<DateTime<Utc>>,
    pub(crate) expires_at: Option<DateTime<Utc>>,
    pub(crate) error: Option<String>,
    pub(crate) flagged: bool,
    pub(crate) parked_with: Option<i64>,
    /// Of a job without a group: the end of its lease, and whether its claim is suspected.
    pub(crate) lease_until: Option<DateTime<Utc>>,
    pub(crate) suspected: bool,
}

/// A pause that is not over.
#[derive(Debug, Clone)]
pub(crate) struct Pause {
    pub(crate) since: DateTime<Utc>,
    pub(crate) why: Option<String>,
    pub(crate) until: Option<DateTime<Utc>>,
}

/// The group's row.
#[derive(Debug, Clone)]
pub(crate) struct LineFacts {
    /// `None`: infinity.
    pub(crate) ready_at: Option<DateTime<Utc>>,
    pub(crate) claimed_job: Option<i64>,
    pub(crate) suspected: bool,
    pub(crate) halted_at: Option<DateTime<Utc>>,
    pub(crate) halt_reason: Option<String>,
    pub(crate) halt_job: Option<i64>,
    pub(crate) halt_until: Option<DateTime<Utc>>,
    pub(crate) parking: bool,
}

impl JobFacts {
    fn attempt(&self, queue: Option<u32>) -> AttemptInfo {
        AttemptInfo::new(self.attempts, self.forgiven, self.max_attempts.or(queue))
    }
}

impl Facts {
    /// Returns whether the job, or the group, is claimed: then a session may hold it.
    pub(crate) fn is_claimed(&self) -> bool {
        match (&self.line, &self.head) {
            (Some(line), _) => line.claimed_job.is_some(),
            (None, Some(head)) => self.group.is_none() && head.status == JobStatus::Started,
            (None, None) => false,
        }
    }

    /// Explains the job that was asked for.
    pub(crate) fn explain_job(self, session: Option<SessionInfo>) -> Option<JobExplanation> {
        let job = self.job.as_ref()?;
        let reason = match (job.status, &self.head) {
            (status, _) if status.is_final() => Reason::Ended {
                status,
                at: job.finished_at,
                error: job.error.clone().filter(|_| status != JobStatus::Succeeded),
                parked: job.parked_with == Some(job.id),
            },
            (JobStatus::Parked, _) => Reason::Parked { with: job.parked_with },
            // One of several jobs that were received together: their receiver may work on any. (No
            // processor is named then; the jobs of a processor's turn run one after the other.)
            (JobStatus::Started, Some(head))
                if head.id != job.id && self.is_claimed() && self.processor.is_none() =>
            {
                self.claim_reason(job, session)
            }
            (_, Some(head)) if head.id != job.id => {
                Reason::Behind { head: head.id, why: Box::new(self.reason(session)) }
            }
            _ => self.reason(session),
        };
        Some(JobExplanation {
            job: job.id,
            status: job.status,
            behind: BoundedCount::new(self.behind),
            cancel_requested_at: self.job_cancel.filter(|_| !job.status.is_final()),
            unserved: self.unserved_for(&reason),
            reason,
            queue: self.queue,
            group: self.group,
        })
    }

    /// Explains the group that was asked for.
    pub(crate) fn explain_group(self, session: Option<SessionInfo>) -> GroupExplanation {
        let reason = self.reason(session);
        let (jobs, since) = (BoundedCount::new(self.parked), self.parked_since);
        GroupExplanation {
            head: self.head.as_ref().map(|head| head.id),
            behind: BoundedCount::new(self.behind),
            cancel_requested_at: self.head_cancel,
            unserved: self.unserved_for(&reason),
            parked: (jobs.count > 0).then_some(ParkedJobs { jobs, since }),
            reason,
            queue: self.queue,
            group: self.group.unwrap_or_default(),
        }
    }

    /// That nobody serves the queue is told of jobs that wait for a worker, or whose worker is
    /// gone.
    fn unserved_for(&self, reason: &Reason) -> Option<Unserved> {
        let served = self.unserved.clone()?;
        let tells = match reason {
            Reason::Behind { why, .. } => return self.unserved_for(why),
            Reason::Claimed { processor, .. } | Reason::Suspected { processor, .. } => {
                processor.as_ref().is_some_and(|processor| !processor.alive)
            }
            Reason::WaitsForTurn { .. }
            | Reason::NotAdopted { .. }
            | Reason::Stranded
            | Reason::Lapsed { .. }
            | Reason::Expired { .. } => true,
            _ => false,
        };
        tells.then_some(Unserved { served })
    }

    /// Returns the reason of the head: a halt before a claim, a claim before a wait.
    fn reason(&self, session: Option<SessionInfo>) -> Reason {
        if let Some(reason) = self.halt_reason() {
            return reason;
        }
        let Some(head) = &self.head else { return Reason::Nothing };
        if self.is_claimed() {
            self.claim_reason(head, session)
        } else {
            self.wait_reason(head, session)
        }
    }

    fn halt_reason(&self) -> Option<Reason> {
        let line = self.line.as_ref()?;
        let since = line.halted_at?;
        if line.parking {
            return Some(Reason::Parking { by: line.halt_job });
        }
        Some(Reason::Halted {
            since,
            seconds: self.seconds_since(since),
            why: line.halt_reason.clone(),
            by: line.halt_job,
            until: line.halt_until,
        })
    }

    /// Returns the reason of a claimed job, with its group if it has one.
    fn claim_reason(&self, job: &JobFacts, session: Option<SessionInfo>) -> Reason {
        let (lease_until, suspected) = match &self.line {
            Some(line) => (line.ready_at, line.suspected),
            None => (job.lease_until, job.suspected),
        };
        let lease_until = lease_until.unwrap_or(self.now);
        let (attempt, processor) = (job.attempt(self.attempts), self.processor.clone());
        let timeout_at = job.started_at.zip(job.timeout.or(self.timeout));
        let timeout_at = timeout_at.and_then(|(began, time)| began.checked_add_signed(time));
        // Receivers have no timeout.
        let timeout_at = timeout_at.filter(|_| processor.is_some());
        let seconds = self.seconds_since(job.started_at.unwrap_or(self.now));
        match session {
            Some(session) => Reason::Running { attempt, seconds, processor, session, timeout_at },
            None if lease_until <= self.now => Reason::Lapsed {
                attempt,
                processor,
                since: lease_until,
                seconds: self.seconds_since(lease_until),
                queue_paused: self.queue_paused.is_some(),
            },
            None if suspected => {
                Reason::Suspected { attempt, processor, taken_over_at: lease_until }
            }
            None => Reason::Claimed { attempt, seconds, processor, lease_until, timeout_at },
        }
    }

    /// Returns why a job without a claim waits, the strongest reason first.
    fn wait_reason(&self, head: &JobFacts, session: Option<SessionInfo>) -> Reason {
        if let Some(Pause { since, why, until }) = self.queue_paused.clone() {
            return Reason::QueuePaused { since, why, until };
        }
        if let Some(Pause { since, why, until }) = self.group_paused.clone() {
            return Reason::GroupPaused { since, why, until };
        }
        if let Some(at) = head.expires_at.filter(|at| *at <= self.now) {
            return Reason::Expired { at };
        }
        if head.run_at > self.now {
            return Reason::NotDue {
                until: head.run_at,
                seconds: -self.seconds_since(head.run_at),
                attempt: head.attempt(self.attempts),
                last_error: head.error.clone().filter(|_| head.attempts > 0),
            };
        }
        if let Some(limit) = self.limit.filter(|limit| self.in_flight >= *limit) {
            return Reason::AtLimit { in_flight: self.in_flight, limit };
        }
        let open = session.as_ref().and_then(|session| session.transaction_start);
        let open = open.map_or(0.0, |since| self.seconds_since(since));
        // Shorter ones are claims and other statements of the library.
        if let Some(session) = session.filter(|_| open >= 1.0) {
            return Reason::Locked { seconds: open, session };
        }
        let seconds = self.seconds_since(head.run_at);
        match (&self.group, &self.line) {
            (Some(_), None) if head.flagged => Reason::NotAdopted { seconds },
            (Some(_), None) => Reason::Stranded,
            (_, line) => {
                let ready = line.as_ref().and_then(|line| line.ready_at);
                let seconds = ready.map_or(seconds, |ready| self.seconds_since(ready).min(seconds));
                Reason::WaitsForTurn {
                    seconds: seconds.max(0.0),
                    before: BoundedCount::new(self.due_before),
                }
            }
        }
    }

    fn seconds_since(&self, time: DateTime<Utc>) -> f64 {
        self.now.signed_duration_since(time).as_seconds_f64()
    }
}

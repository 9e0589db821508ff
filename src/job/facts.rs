//! The database's facts about a job or a group, and the explanation made from them. The SQL
//! function `explain` decides the reason; here it becomes a value. Pure.

use chrono::{DateTime, Utc};

use crate::job::attempt::AttemptInfo;
use crate::job::explanation::{
    BoundedCount, GroupExplanation, JobExplanation, LockedRow, ParkedJobs, ProcessorInfo, Reason,
    SessionInfo, Unserved,
};
use crate::job::job::JobStatus;
use crate::job::progress::Progress;
use crate::job::rate::Rate;

/// The answer of the SQL function.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) asked_at: DateTime<Utc>,
    /// The job that was asked about, and its status.
    pub(crate) job: Option<(i64, JobStatus)>,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    /// The claimed job of the group, or its lowest unfinished one. A job without a group is its own
    /// head.
    pub(crate) head: Option<i64>,
    /// The words of the reason, and of the head's if the job is behind that.
    pub(crate) reason: String,
    pub(crate) head_reason: Option<String>,
    /// The reason decides the meaning of this field and the next three.
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) until: Option<DateTime<Utc>>,
    pub(crate) detail: Option<String>,
    pub(crate) by: Option<i64>,
    pub(crate) attempt: AttemptInfo,
    pub(crate) snoozes: u32,
    pub(crate) timeout_at: Option<DateTime<Utc>>,
    pub(crate) progress: Option<Progress>,
    pub(crate) batch: Option<i64>,
    /// How often an enqueue with its unique key replaced the job's data, and when last.
    pub(crate) replaced: u32,
    pub(crate) replaced_at: Option<DateTime<Utc>>,
    pub(crate) behind: u64,
    pub(crate) before: u64,
    pub(crate) in_flight: u64,
    pub(crate) rate: Option<Rate>,
    pub(crate) limit: Option<u64>,
    /// The groups that run for each limit key: how many, and how many may.
    pub(crate) key_taken: u64,
    pub(crate) limit_per_key: Option<u32>,
    pub(crate) cancel_requested_at: Option<DateTime<Utc>>,
    pub(crate) unserved: Option<Vec<String>>,
    pub(crate) parked: u64,
    pub(crate) parked_since: Option<DateTime<Utc>>,
    pub(crate) has_parked: bool,
    pub(crate) queue_paused: bool,
    pub(crate) processor: Option<ProcessorInfo>,
    pub(crate) session: Option<SessionInfo>,
    pub(crate) standby_at: Option<DateTime<Utc>>,
}

impl Facts {
    /// Explains the job that was asked for; `None` if the facts are no answer about one.
    pub(crate) fn explain_job(self) -> Option<JobExplanation> {
        let (job, status) = self.job?;
        let reason = match &self.head_reason {
            Some(word) => Reason::Behind { head: self.head?, why: Box::new(self.reason(word)?) },
            None => self.reason(&self.reason)?,
        };
        Some(JobExplanation {
            job,
            status,
            reason,
            batch: self.batch,
            replaced: self.replaced,
            replaced_at: self.replaced_at,
            behind: BoundedCount::new(self.behind),
            cancel_requested_at: self.cancel_requested_at,
            unserved: self.unserved.map(|served| Unserved { served }),
            queue: self.queue,
            group: self.group,
            standby_at: self.standby_at,
        })
    }

    /// Explains the group that was asked for; `None` if the facts are no answer about one.
    pub(crate) fn explain_group(self) -> Option<GroupExplanation> {
        let reason = self.reason(&self.reason)?;
        let (jobs, since) = (BoundedCount::new(self.parked), self.parked_since);
        Some(GroupExplanation {
            head: self.head,
            reason,
            behind: BoundedCount::new(self.behind),
            cancel_requested_at: self.cancel_requested_at,
            unserved: self.unserved.map(|served| Unserved { served }),
            parked: (jobs.count > 0).then_some(ParkedJobs { jobs, since }),
            queue: self.queue,
            group: self.group?,
            standby_at: self.standby_at,
        })
    }

    /// Returns the reason of a word; `None` if what belongs to it is missing.
    fn reason(&self, word: &str) -> Option<Reason> {
        let (since, until, why) = (self.since, self.until, self.detail.clone());
        let (attempt, processor) = (self.attempt, self.processor.clone());
        let (timeout_at, progress) = (self.timeout_at, self.progress.clone());
        let seconds = since.map_or(0.0, |since| self.seconds_since(since));
        let seconds_left = until.map(|until| -self.seconds_since(until));
        Some(match word {
            "running" => {
                let session = self.session.clone()?;
                Reason::Running { attempt, seconds, processor, session, timeout_at, progress }
            }
            "locked" => {
                let row = match why.as_deref() {
                    None => LockedRow::Job,
                    Some("queue") => LockedRow::Queue,
                    Some(_) => LockedRow::LimitKey,
                };
                Reason::Locked { row, seconds, session: self.session.clone()? }
            }
            "claimed" => {
                let lease_until = until?;
                Reason::Claimed { attempt, seconds, processor, lease_until, timeout_at, progress }
            }
            "suspected" => Reason::Suspected { attempt, processor, taken_over_at: until? },
            "lapsed" => Reason::Lapsed {
                attempt,
                processor,
                since: since?,
                seconds,
                queue_paused: self.queue_paused,
            },
            "not_due" => Reason::NotDue {
                until: until?,
                seconds: -self.seconds_since(until?),
                attempt,
                snoozes: self.snoozes,
                last_error: why,
            },
            "halted" => Reason::Halted { since: since?, seconds, why, by: self.by, until },
            "parking" => Reason::Parking { by: self.by },
            "group_paused" => {
                Reason::GroupPaused { since: since?, why, until, seconds_left, rested_by: self.by }
            }
            "queue_paused" => {
                Reason::QueuePaused { since: since?, why, until, seconds_left, rested_by: self.by }
            }
            "at_limit" => Reason::AtLimit { in_flight: self.in_flight, limit: self.limit? },
            "at_rate" => Reason::AtRate { rate: self.rate?, until: until? },
            "at_key_limit" => Reason::AtKeyLimit {
                key: self.detail.clone()?,
                taken: self.key_taken,
                limit: self.limit_per_key,
                seconds: seconds.max(0.0),
                before: BoundedCount::new(self.before),
            },
            "spaced" => Reason::Spaced { until: until? },
            "waits_for_turn" => Reason::WaitsForTurn {
                seconds: seconds.max(0.0),
                before: BoundedCount::new(self.before),
            },
            "not_adopted" => Reason::NotAdopted { seconds },
            "stranded" => Reason::Stranded,
            "expired" => Reason::Expired { at: since? },
            "dead_letter" => {
                Reason::DeadLetter { failed_in: why?, waits_in: self.queue.clone(), seconds }
            }
            "parked" => Reason::Parked { with: self.by },
            "ended" => Reason::Ended {
                status: self.job?.1,
                at: since,
                error: why,
                parked: self.has_parked,
                halts: self.by.is_some(),
            },
            "nothing" => Reason::Nothing,
            _ => return None,
        })
    }

    fn seconds_since(&self, time: DateTime<Utc>) -> f64 {
        self.asked_at.signed_duration_since(time).as_seconds_f64()
    }
}

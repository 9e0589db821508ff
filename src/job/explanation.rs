//! Why a job or a group is where it is: one value, and one sentence of it. Pure.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::attempt::AttemptInfo;
use crate::job::job::JobStatus;

/// Why a job is where it is; prints as one sentence.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobExplanation {
    /// The job.
    pub job: i64,
    /// Its queue.
    pub queue: String,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Its state.
    pub status: JobStatus,
    /// Its activity, or its reason to wait.
    pub reason: Reason,
    /// The number of unfinished jobs behind it in its group.
    pub behind: BoundedCount,
    /// Since when a request to cancel it is pending; its handler has been told.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// No living processor or receiver serves its queue.
    pub unserved: Option<Unserved>,
}

/// Why a group is where it is; prints as one sentence.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupExplanation {
    /// The queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// The job that runs or is next; `None`: the group has no unfinished job.
    pub head: Option<i64>,
    /// The activity of the job that runs or is next, or its reason to wait.
    pub reason: Reason,
    /// The number of unfinished jobs behind it.
    pub behind: BoundedCount,
    /// Since when a request to cancel the job that runs or is next is pending.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// No living processor or receiver serves the queue.
    pub unserved: Option<Unserved>,
    /// Jobs of the group that stepped aside with one that failed.
    pub parked: Option<ParkedJobs>,
}

/// No living processor or receiver serves a queue: perhaps its name is mistyped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unserved {
    /// The queues that are served, by name, 20 at most.
    pub served: Vec<String>,
}

/// Jobs of a group that stepped aside with one that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParkedJobs {
    /// Their number, without those that failed.
    pub jobs: BoundedCount,
    /// When the first of those failed.
    pub since: Option<DateTime<Utc>>,
}

/// A number that was counted up to [`BoundedCount::LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BoundedCount {
    /// The number, or the least that it can be.
    pub count: u64,
    /// There are more than were counted.
    pub or_more: bool,
}

/// The processor that claimed a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessorInfo {
    /// Its id.
    pub id: i64,
    /// The name of its node.
    pub node: String,
    /// Its host.
    pub host: Option<String>,
    /// Its process id there.
    pub pid: Option<i32>,
    /// Whether it shows that it lives.
    pub alive: bool,
    /// The queues that it serves; `None`: it is of a version that does not say.
    pub queues: Option<Vec<String>>,
    /// When it started.
    pub started_at: Option<DateTime<Utc>>,
    /// When it last said that it lives, which it does every 10 s.
    pub seen_at: Option<DateTime<Utc>>,
}

/// The database session that holds a running job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its process id in the server.
    pub pid: i32,
    /// The name of its program, as that says it.
    pub application: Option<String>,
    /// Its state (`active`, `idle in transaction`, …), if the role may see it.
    pub state: Option<String>,
    /// The current or last query, if the role may see it.
    pub query: Option<String>,
    /// When that query began.
    pub query_start: Option<DateTime<Utc>>,
    /// The address of the client; `None`: a local socket.
    pub client_address: Option<String>,
    /// When it was opened.
    pub since: Option<DateTime<Utc>>,
    /// When its transaction began, if the role may see it.
    pub transaction_start: Option<DateTime<Utc>>,
    /// The sessions whose locks it waits for, by their process ids in the server.
    pub blocked_by: Vec<i32>,
}

/// The activity of a job or of a group's head, or its reason to wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Its handler runs, in a transaction that holds it.
    Running {
        /// The attempt.
        attempt: AttemptInfo,
        /// For how long, in seconds.
        seconds: f64,
        /// The processor that claimed it, if that is known.
        processor: Option<ProcessorInfo>,
        /// The session that has the lock.
        session: SessionInfo,
        /// When its timeout ends it, if a processor says so.
        timeout_at: Option<DateTime<Utc>>,
    },
    /// It is due, but a transaction that has nothing to do with a run of it has its row, or its
    /// group's.
    Locked {
        /// For how long that transaction has been open, in seconds; 0 if the role may not see when
        /// it began.
        seconds: f64,
        /// Its session.
        session: SessionInfo,
    },
    /// A worker or a receiver claimed it and no session holds it: its lease or visibility does, or
    /// its handler is about to begin.
    Claimed {
        /// The attempt.
        attempt: AttemptInfo,
        /// For how long, in seconds.
        seconds: f64,
        /// The processor that claimed it, if that is known; `None` for a job that was received by
        /// hand.
        processor: Option<ProcessorInfo>,
        /// When the lease, or the visibility, ends unless it is extended.
        lease_until: DateTime<Utc>,
        /// When its timeout ends it, if a processor says so.
        timeout_at: Option<DateTime<Utc>>,
    },
    /// Its worker seems lost: the claim is suspected.
    Suspected {
        /// The attempt.
        attempt: AttemptInfo,
        /// The processor that claimed it, if that is known.
        processor: Option<ProcessorInfo>,
        /// When another worker takes it over, unless the suspicion is cleared.
        taken_over_at: DateTime<Utc>,
    },
    /// Its lease or its visibility is over, or it could have been taken over by now, and nobody has
    /// taken it over.
    Lapsed {
        /// The attempt.
        attempt: AttemptInfo,
        /// The processor that claimed it, if that is known; `None` for a job that was received by
        /// hand.
        processor: Option<ProcessorInfo>,
        /// Since when.
        since: DateTime<Utc>,
        /// For how many seconds.
        seconds: f64,
        /// Its queue is paused, so that no worker claims from it.
        queue_paused: bool,
    },
    /// Another job of its group comes first.
    Behind {
        /// The job that comes first.
        head: i64,
        /// The activity of that job, or its reason to wait.
        why: Box<Reason>,
    },
    /// It is not due: delayed, or waiting for a retry.
    NotDue {
        /// When it will be due.
        until: DateTime<Utc>,
        /// In how many seconds.
        seconds: f64,
        /// The attempts so far.
        attempt: AttemptInfo,
        /// The message of the last failure.
        last_error: Option<String>,
    },
    /// Its group is halted.
    Halted {
        /// Since when.
        since: DateTime<Utc>,
        /// For how many seconds.
        seconds: f64,
        /// The message of the failure.
        why: Option<String>,
        /// The job that failed.
        by: Option<i64>,
        /// The deadline of the halt; `None`: only an operator ends it.
        until: Option<DateTime<Utc>>,
    },
    /// The jobs of its group are stepping aside behind one that failed.
    Parking {
        /// The job that failed.
        by: Option<i64>,
    },
    /// Its group is paused.
    GroupPaused {
        /// Since when.
        since: DateTime<Utc>,
        /// The reason that the operator gave.
        why: Option<String>,
        /// When it ends by itself; `None`: only an operator ends it.
        until: Option<DateTime<Utc>>,
    },
    /// Its queue is paused.
    QueuePaused {
        /// Since when.
        since: DateTime<Utc>,
        /// The reason that the operator gave.
        why: Option<String>,
        /// When it ends by itself; `None`: only an operator ends it.
        until: Option<DateTime<Utc>>,
    },
    /// The limit of jobs in flight of its queue is reached.
    AtLimit {
        /// The number of jobs in flight.
        in_flight: u64,
        /// The limit.
        limit: u64,
    },
    /// It is due, and waits for its turn: no worker has claimed it yet.
    WaitsForTurn {
        /// Since when, in seconds.
        seconds: f64,
        /// The number of groups (or jobs without one) of its queue that are ready before it.
        before: BoundedCount,
    },
    /// It is due and flagged, and no worker has adopted its group yet.
    NotAdopted {
        /// Since when, in seconds.
        seconds: f64,
    },
    /// Nothing would wake it, because tables were written by hand. The sweep will find it.
    Stranded,
    /// It expired before it began, and ends without a run when its turn comes.
    Expired {
        /// When.
        at: DateTime<Utc>,
    },
    /// It failed for good in another queue, and waits in that one's dead-letter queue, which no
    /// processor serves, until it is redriven or discarded.
    DeadLetter {
        /// The queue that it failed in.
        failed_in: String,
        /// The dead-letter queue.
        waits_in: String,
        /// For how long, in seconds.
        seconds: f64,
    },
    /// It stepped aside with a job that failed, until it is redriven or discarded.
    Parked {
        /// The job that failed.
        with: Option<i64>,
    },
    /// It has ended.
    Ended {
        /// The state that it ended in.
        status: JobStatus,
        /// When.
        at: Option<DateTime<Utc>>,
        /// Why, if it did not succeed.
        error: Option<String>,
        /// Whether later jobs of its group are parked with it.
        parked: bool,
    },
    /// The group has no unfinished job.
    Nothing,
}

impl BoundedCount {
    /// Bounds what is counted.
    pub const LIMIT: u64 = 10_000;

    /// Returns the number for a count that stops at one more than the limit.
    pub(crate) fn new(count: u64) -> Self {
        Self::up_to(count, Self::LIMIT)
    }

    /// Returns the number for a count that stops at one more than another limit.
    pub(crate) fn up_to(count: u64, limit: u64) -> Self {
        Self { count: count.min(limit), or_more: count > limit }
    }
}

impl fmt::Display for BoundedCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, if self.or_more { " or more" } else { "" })
    }
}

impl fmt::Display for ProcessorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "processor {}", self.node)?;
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => write!(f, " (host {host}, pid {pid})"),
            (Some(host), None) => write!(f, " (host {host})"),
            (None, Some(pid)) => write!(f, " (pid {pid})"),
            (None, None) => Ok(()),
        }?;
        f.write_str(if self.alive { "" } else { ", which is gone" })
    }
}

impl fmt::Display for SessionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "database session {}", self.pid)?;
        if let Some(application) = &self.application {
            write!(f, " ({})", one_line(application))?;
        }
        if let Some(state) = &self.state {
            write!(f, " {state}")?;
        }
        if let Some(query) = &self.query {
            write!(f, ": {}", one_line(query))?;
        }
        match &*self.blocked_by {
            [] => Ok(()),
            [other, ..] => write!(f, ", which waits for a lock of database session {other}"),
        }
    }
}

/// Returns the beginning of a text, without line breaks.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 160;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= LONGEST {
        return words;
    }
    words.chars().take(LONGEST).chain(['…']).collect()
}

/// Returns seconds in words.
fn in_words(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

fn clock_time(time: &DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn reason_suffix(why: Option<&String>) -> String {
    why.map(|why| format!(" ({})", one_line(why))).unwrap_or_default()
}

fn by_processor(processor: Option<&ProcessorInfo>) -> String {
    processor.map_or_else(|| String::from("a worker or a receiver"), ToString::to_string)
}

fn write_timeout(f: &mut fmt::Formatter<'_>, at: Option<&DateTime<Utc>>) -> fmt::Result {
    at.map_or(Ok(()), |at| write!(f, "; its timeout ends it at {}", clock_time(at)))
}

/// The part of the sentence behind the job's name.
impl fmt::Display for Reason {
    #[allow(clippy::too_many_lines)] // One sentence per variant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { attempt, seconds, processor, session, timeout_at } => {
                write!(f, "is running ({attempt}, for {})", in_words(*seconds))?;
                if let Some(processor) = processor {
                    write!(f, " in {processor}")?;
                }
                write!(f, ", {session}")?;
                write_timeout(f, timeout_at.as_ref())
            }
            Self::Locked { session, .. } if session.transaction_start.is_none() => {
                write!(f, "is due, but a transaction has its row or its group's: {session}")
            }
            Self::Locked { seconds, session } => write!(
                f,
                "is due, but a transaction has had its row or its group's for {}, {session}",
                in_words(*seconds)
            ),
            Self::Claimed { attempt, seconds, processor, lease_until, timeout_at } => {
                write!(
                    f,
                    "is claimed ({attempt}, for {}) by {}, without a transaction; its lease ends at {}",
                    in_words(*seconds),
                    by_processor(processor.as_ref()),
                    clock_time(lease_until)
                )?;
                write_timeout(f, timeout_at.as_ref())
            }
            Self::Suspected { attempt, processor, taken_over_at } => write!(
                f,
                "was begun ({attempt}) by {}, which seems lost; it can be taken over at {}",
                by_processor(processor.as_ref()),
                clock_time(taken_over_at)
            ),
            Self::Lapsed { attempt, processor, seconds, .. } => write!(
                f,
                "was begun ({attempt}) by {}; its lease ended {} ago, and no worker has taken it over",
                by_processor(processor.as_ref()),
                in_words(*seconds)
            ),
            Self::Behind { head, why } => write!(f, "waits behind job {head}, which {why}"),
            Self::NotDue { until, seconds, attempt, last_error } => match last_error {
                Some(error) => write!(
                    f,
                    "waits for its retry in {}, at {} ({attempt} failed: {})",
                    in_words(*seconds),
                    clock_time(until),
                    one_line(error)
                ),
                None => {
                    write!(f, "is delayed for {}, until {}", in_words(*seconds), clock_time(until))
                }
            },
            Self::Halted { seconds, why, by, until, .. } => {
                write!(f, "waits because its group has been halted for {}", in_words(*seconds))?;
                if let Some(job) = by {
                    write!(f, " by job {job}")?;
                }
                f.write_str(&reason_suffix(why.as_ref()))?;
                write_until(f, until.as_ref())
            }
            Self::Parking { by } => {
                f.write_str("waits while jobs of its group are being parked")?;
                by.map_or(Ok(()), |job| write!(f, " behind job {job}"))
            }
            Self::GroupPaused { since, why, until } => {
                write!(f, "waits because its group has been paused since {}", clock_time(since))?;
                f.write_str(&reason_suffix(why.as_ref()))?;
                write_resumption(f, until.as_ref())
            }
            Self::QueuePaused { since, why, until } => {
                write!(f, "waits because its queue has been paused since {}", clock_time(since))?;
                f.write_str(&reason_suffix(why.as_ref()))?;
                write_resumption(f, until.as_ref())
            }
            Self::AtLimit { in_flight, limit } => write!(
                f,
                "waits because its queue has reached its limit of jobs in flight ({in_flight} of {limit})"
            ),
            Self::WaitsForTurn { seconds, before } => {
                write!(
                    f,
                    "waits for its turn (due for {}): no worker has taken it yet",
                    in_words(*seconds)
                )?;
                match before.count {
                    0 => f.write_str(", and nothing is due before it"),
                    1 => f.write_str(", and 1 is due before it"),
                    _ => write!(f, ", and {before} are due before it"),
                }
            }
            Self::NotAdopted { seconds } => {
                write!(
                    f,
                    "has been due for {}, and no worker has adopted its group yet",
                    in_words(*seconds)
                )
            }
            Self::Stranded => {
                f.write_str("waits and nothing would wake it, until a processor's sweep finds it")
            }
            Self::Expired { at: time } => {
                write!(f, "expired at {} and ends without a run at its turn", clock_time(time))
            }
            Self::DeadLetter { failed_in, waits_in, seconds } => write!(
                f,
                "is a dead letter of queue {failed_in:?}, and has waited in queue {waits_in:?} for {} \
                 to be redriven or discarded",
                in_words(*seconds)
            ),
            Self::Parked { with: Some(job) } => write!(
                f,
                "is parked with job {job}, which failed, until that is redriven or discarded"
            ),
            Self::Parked { with: None } => f.write_str("is parked"),
            Self::Ended { status, at: time, error, parked } => {
                write!(
                    f,
                    "has {}",
                    if *status == JobStatus::Cancelled {
                        "been cancelled"
                    } else {
                        status.as_str()
                    }
                )?;
                if let Some(time) = time {
                    write!(f, " at {}", clock_time(time))?;
                }
                if let Some(error) = error {
                    write!(f, ": {}", one_line(error))?;
                }
                f.write_str(if *parked { "; later jobs are parked with it" } else { "" })
            }
            Self::Nothing => f.write_str("has nothing to do"),
        }
    }
}

fn write_jobs_behind(f: &mut fmt::Formatter<'_>, behind: BoundedCount, job: i64) -> fmt::Result {
    match behind.count {
        0 => Ok(()),
        1 => write!(f, "; 1 job is behind job {job}"),
        _ => write!(f, "; {behind} jobs are behind job {job}"),
    }
}

impl fmt::Display for JobExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, queue, group, reason, behind, .. } = self;
        match (reason, group) {
            (Reason::Behind { head, why }, Some(group)) => {
                write!(f, "job {job} waits behind job {head} of group {group:?}, which {why}")?;
            }
            (_, Some(group)) => write!(f, "job {job} of group {group:?} {reason}")?,
            (_, None) => write!(f, "job {job} of queue {queue:?} {reason}")?,
        }
        write_jobs_behind(f, *behind, *job)?;
        write_cancel(f, self.cancel_requested_at.as_ref())?;
        write_unserved(f, queue, self.unserved.as_ref())?;
        write_advice(f, self.advice())
    }
}

impl fmt::Display for GroupExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, group, head, reason, behind, .. } = self;
        match (head, reason) {
            // The job that stops the group comes before the innocent one that is next.
            (_, Reason::Halted { seconds, why, by: Some(by), until, .. }) => {
                write!(f, "job {by} has halted group {group:?} of queue {queue:?}")?;
                write!(f, " for {}{}", in_words(*seconds), reason_suffix(why.as_ref()))?;
                write_until(f, until.as_ref())?;
                match head {
                    Some(head) => {
                        write!(f, "; job {head} is next")?;
                        write_jobs_behind(f, *behind, *head)?;
                    }
                    None => f.write_str("; it has no unfinished job")?,
                }
            }
            (Some(head), _) => {
                write!(f, "job {head} of group {group:?} {reason}")?;
                write_jobs_behind(f, *behind, *head)?;
            }
            (None, Reason::Nothing) => {
                write!(f, "group {group:?} of queue {queue:?} has no unfinished job")?;
            }
            (None, _) => {
                write!(
                    f,
                    "group {group:?} of queue {queue:?} has no unfinished job, and {reason}"
                )?;
            }
        }
        if let Some(ParkedJobs { jobs, since }) = &self.parked {
            write!(f, "; {jobs} of its jobs are parked")?;
            if let Some(since) = since {
                write!(f, " since {}", clock_time(since))?;
            }
        }
        write_cancel(f, self.cancel_requested_at.as_ref())?;
        write_unserved(f, queue, self.unserved.as_ref())?;
        write_advice(f, self.advice())
    }
}

fn write_until(f: &mut fmt::Formatter<'_>, until: Option<&DateTime<Utc>>) -> fmt::Result {
    match until {
        Some(until) => write!(f, ", until {} or until an operator decides", clock_time(until)),
        None => f.write_str(", until an operator decides"),
    }
}

fn write_resumption(f: &mut fmt::Formatter<'_>, until: Option<&DateTime<Utc>>) -> fmt::Result {
    until.map_or(Ok(()), |until| write!(f, ", until {}: it resumes by itself", clock_time(until)))
}

fn write_cancel(f: &mut fmt::Formatter<'_>, since: Option<&DateTime<Utc>>) -> fmt::Result {
    since.map_or(Ok(()), |since| write!(f, "; a cancel is pending since {}", clock_time(since)))
}

fn write_unserved(
    f: &mut fmt::Formatter<'_>,
    queue: &str,
    unserved: Option<&Unserved>,
) -> fmt::Result {
    let Some(Unserved { served }) = unserved else { return Ok(()) };
    write!(f, "; no living processor or receiver serves queue {queue:?}")?;
    match &**served {
        [] => f.write_str(", and none lives at all"),
        served => write!(f, " (is the name mistyped? served are {})", listed(served)),
    }
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn write_advice(f: &mut fmt::Formatter<'_>, advice: Option<String>) -> fmt::Result {
    advice.map_or(Ok(()), |advice| write!(f, ". To do: {advice}"))
}

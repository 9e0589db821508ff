//! An explanation in words: where the job or the group is, what waits behind it, and what to do.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};

use crate::job::attempt::AttemptInfo;
use crate::job::explanation::{
    BoundedCount, GroupExplanation, JobExplanation, LockedRow, ParkedJobs, ProcessorInfo, Reason,
    SessionInfo, Unserved,
};
use crate::job::job::JobStatus;
use crate::job::progress::Progress;
use crate::job::words::{clock_time, counted};

/// How long after its timeout a run of a silent process is ended: `abort_silent_run` in
/// `sql/functions/silent.sql`.
const SILENT_GRACE: TimeDelta = TimeDelta::seconds(30);

impl fmt::Display for JobExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, queue, group, reason, behind, .. } = self;
        match (reason, group) {
            (Reason::Ended { halts: true, at, error, .. }, Some(group)) => {
                write!(f, "Job {job} failed and stopped group {group:?}")?;
                write_time(f, at.as_ref())?;
                write_why(f, error.as_ref())?;
                f.write_str(".")?;
            }
            (Reason::Behind { head, why }, Some(group)) => {
                write!(f, "Job {job} waits behind job {head} of group {group:?}, which {why}.")?;
            }
            (_, Some(group)) => write!(f, "Job {job} of group {group:?} {reason}.")?,
            (_, None) => write!(f, "Job {job} of queue {queue:?} {reason}.")?,
        }
        if !matches!(reason, Reason::Ended { halts: false, .. }) {
            write_jobs_behind(f, *behind, *job)?;
        }
        if let Some(batch) = self.batch {
            write!(f, " It is of batch {batch}.")?;
        }
        if let Some(at) = self.replaced_at {
            let times = counted(self.replaced.into(), "time");
            write!(f, " Its data was replaced {times}, last at {}.", clock_time(&at))?;
        }
        write_cancel(f, self.cancel_requested_at.as_ref())?;
        write_unserved(f, queue, self.unserved.as_ref())?;
        write_standby(f, self.standby_at.as_ref())?;
        write_advice(f, self.advice())
    }
}

impl fmt::Display for GroupExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, group, head, reason, behind, .. } = self;
        match (head, reason) {
            // The job that stops the group comes before the innocent one that is next.
            (_, Reason::Halted { seconds, why, by: Some(by), until, .. }) => {
                write!(f, "Job {by} failed and stopped group {group:?} of queue {queue:?}")?;
                write!(f, " {} ago", in_words(*seconds))?;
                write_why(f, why.as_ref())?;
                f.write_str(".")?;
                write_halt_end(f, until.as_ref())?;
                write_halted_jobs(f, *head, *behind)?;
            }
            (Some(head), _) => {
                write!(f, "Job {head} of group {group:?} {reason}.")?;
                write_jobs_behind(f, *behind, *head)?;
            }
            (None, Reason::Nothing) => {
                write!(f, "Group {group:?} of queue {queue:?} has no unfinished job.")?;
            }
            (None, _) => write!(
                f,
                "Group {group:?} of queue {queue:?} has no unfinished job, and {reason}."
            )?,
        }
        if let Some(ParkedJobs { jobs, since }) = &self.parked {
            write!(f, " {jobs} of its jobs are parked")?;
            if let Some(since) = since {
                write!(f, " since {}", clock_time(since))?;
            }
            f.write_str(".")?;
        }
        write_cancel(f, self.cancel_requested_at.as_ref())?;
        write_unserved(f, queue, self.unserved.as_ref())?;
        write_standby(f, self.standby_at.as_ref())?;
        write_advice(f, self.advice())
    }
}

/// The part of the sentence behind the job's name.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { attempt, seconds, processor, session, timeout_at, progress } => {
                let progress = far(progress.as_ref());
                write!(f, "is running ({attempt}, for {}{progress})", in_words(*seconds))?;
                if let Some(processor) = processor {
                    write!(f, " in {processor}")?;
                }
                write!(f, ", {session}")?;
                write_timeout(f, timeout_at.as_ref(), processor.as_ref())
            }
            Self::Locked { row, seconds, session } => write_locked(f, *row, *seconds, session),
            Self::Claimed { attempt, seconds, processor, lease_until, timeout_at, progress } => {
                let (time, by) = (in_words(*seconds), by_processor(processor.as_ref()));
                let progress = far(progress.as_ref());
                write!(f, "is claimed ({attempt}, for {time}{progress}) by {by}")?;
                write!(f, "; its lease ends at {}", clock_time(lease_until))?;
                write_timeout(f, timeout_at.as_ref(), processor.as_ref())
            }
            Self::Suspected { attempt, processor, taken_over_at: at } => {
                write_begun(f, *attempt, processor.as_ref())?;
                write!(f, ", which seems lost; it can be taken over at {}", clock_time(at))
            }
            Self::Lapsed { attempt, processor, seconds, .. } => {
                write_begun(f, *attempt, processor.as_ref())?;
                let ago = in_words(*seconds);
                write!(f, "; its lease ended {ago} ago, and no worker has taken it over")
            }
            Self::Behind { head, why } => write!(f, "waits behind job {head}, which {why}"),
            Self::NotDue { until, seconds, attempt, snoozes, last_error } => {
                write_not_due(f, until, *seconds, *attempt, *snoozes, last_error.as_ref())
            }
            Self::Halted { seconds, why, by, until, .. } => {
                write_halt(f, *seconds, *by, why.as_ref())?;
                let end = until.map(|until| format!(" (until {})", clock_time(&until)));
                f.write_str(&end.unwrap_or_default())
            }
            Self::Parking { by } => {
                f.write_str("waits while jobs of its group are being parked")?;
                by.map_or(Ok(()), |job| write!(f, " behind job {job}"))
            }
            Self::GroupPaused { since, why, until, seconds_left, rested_by }
            | Self::QueuePaused { since, why, until, seconds_left, rested_by } => {
                let what = if matches!(self, Self::GroupPaused { .. }) { "group" } else { "queue" };
                match (rested_by, until) {
                    (Some(by), Some(until)) => {
                        write_rest(f, what, until, seconds_left.unwrap_or_default(), *by)?;
                        write_given_reason(f, why.as_ref())
                    }
                    _ => write_pause(f, what, since, why.as_ref(), until.as_ref()),
                }
            }
            Self::AtLimit { in_flight, limit } => write!(
                f,
                "waits because its queue has reached its limit of jobs in flight ({in_flight} of {limit})"
            ),
            Self::AtKeyLimit { key, taken, limit, seconds, before } => {
                write!(f, "has waited for {} ", in_words(*seconds))?;
                write_key_limit(f, key, *taken, *limit)?;
                write_groups_before(f, *before)
            }
            Self::AtRate { rate, until } => write!(
                f,
                "waits until {} because its queue starts {rate} at most",
                clock_time(until)
            ),
            Self::Spaced { until } => write!(
                f,
                "waits until {} because its queue spaces the starts of each group",
                clock_time(until)
            ),
            Self::WaitsForTurn { seconds, before } => write_turn(f, *seconds, *before),
            Self::NotAdopted { seconds } => {
                let time = in_words(*seconds);
                write!(f, "has been due for {time}, and no worker has adopted its group yet")
            }
            Self::Stranded => {
                f.write_str("waits and nothing would wake it, until a processor's sweep finds it")
            }
            Self::Expired { at } => {
                write!(f, "expired at {} and ends without a run at its turn", clock_time(at))
            }
            Self::DeadLetter { failed_in, waits_in, seconds } => {
                write!(f, "is a dead letter of queue {failed_in:?}, and has waited in queue")?;
                write!(f, " {waits_in:?} for {}", in_words(*seconds))
            }
            Self::Parked { with: Some(job) } => {
                write!(f, "is parked with job {job}, which failed")
            }
            Self::Parked { with: None } => f.write_str("is parked"),
            Self::Ended { status, at, error, parked, .. } => {
                write_end(f, *status, at.as_ref(), error.as_ref(), *parked)
            }
            Self::Nothing => f.write_str("has nothing to do"),
        }
    }
}

fn write_key_limit(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    taken: u64,
    limit: Option<u32>,
) -> fmt::Result {
    match limit {
        Some(0) => write!(f, "because limit key {key:?} is paused by its limit 0"),
        Some(limit) => {
            write!(f, "for a slot of limit key {key:?} ({taken} of {limit} are taken)")
        }
        None => write!(f, "for a slot of limit key {key:?}"),
    }
}

fn write_groups_before(f: &mut fmt::Formatter<'_>, before: BoundedCount) -> fmt::Result {
    match before.count {
        0 => f.write_str(", and no other group waits before it"),
        1 => f.write_str(", and 1 group waits before it"),
        _ => write!(f, ", and {before} groups wait before it"),
    }
}

fn write_locked(
    f: &mut fmt::Formatter<'_>,
    row: LockedRow,
    seconds: f64,
    session: &SessionInfo,
) -> fmt::Result {
    let row = match row {
        LockedRow::Job => "its row or its group's",
        LockedRow::Queue => "the row of its queue, which has a limit or a rate,",
        LockedRow::LimitKey => "its limit key",
    };
    if session.transaction_start.is_none() {
        return write!(f, "is due, but a transaction has {row}: {session}");
    }
    let time = in_words(seconds);
    write!(f, "is due, but a transaction has had {row} for {time}, {session}")
}

fn write_begun(
    f: &mut fmt::Formatter<'_>,
    attempt: AttemptInfo,
    processor: Option<&ProcessorInfo>,
) -> fmt::Result {
    write!(f, "was begun ({attempt}) by {}", by_processor(processor))
}

fn write_not_due(
    f: &mut fmt::Formatter<'_>,
    until: &DateTime<Utc>,
    seconds: f64,
    attempt: AttemptInfo,
    snoozes: u32,
    last_error: Option<&String>,
) -> fmt::Result {
    let (time, until) = (in_words(seconds), clock_time(until));
    match last_error {
        _ if snoozes > 0 => {
            let times = counted(snoozes.into(), "time");
            write!(f, "was snoozed {times}, and runs again in {time}, at {until}")
        }
        Some(error) => {
            let error = one_line(error);
            write!(f, "waits for its retry in {time}, at {until} ({attempt} failed: {error})")
        }
        None => write!(f, "is delayed for {time}, until {until}"),
    }
}

fn write_halt(
    f: &mut fmt::Formatter<'_>,
    seconds: f64,
    by: Option<i64>,
    why: Option<&String>,
) -> fmt::Result {
    let time = in_words(seconds);
    match by {
        Some(job) => write!(f, "waits because job {job} failed and stopped its group {time} ago")?,
        None => write!(f, "waits because its group was halted {time} ago")?,
    }
    write_why(f, why)
}

fn write_pause(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    since: &DateTime<Utc>,
    why: Option<&String>,
    until: Option<&DateTime<Utc>>,
) -> fmt::Result {
    write!(f, "waits because its {what} has been paused since {}", clock_time(since))?;
    write_given_reason(f, why)?;
    until.map_or(Ok(()), |until| write!(f, ", until {}: it resumes by itself", clock_time(until)))
}

/// Writes a pause that a job asked for.
fn write_rest(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    until: &DateTime<Utc>,
    seconds: f64,
    by: i64,
) -> fmt::Result {
    let (time, end) = (in_words(seconds), clock_time(until));
    write!(f, "waits because its {what} rests until {end} (in {time}): job {by} asked for that")
}

fn write_given_reason(f: &mut fmt::Formatter<'_>, why: Option<&String>) -> fmt::Result {
    why.map_or(Ok(()), |why| write!(f, " ({})", one_line(why)))
}

fn write_turn(f: &mut fmt::Formatter<'_>, seconds: f64, before: BoundedCount) -> fmt::Result {
    let time = in_words(seconds);
    write!(f, "waits for its turn (due for {time}): no worker has taken it yet")?;
    match before.count {
        0 => f.write_str(", and nothing is due before it"),
        1 => f.write_str(", and 1 is due before it"),
        _ => write!(f, ", and {before} are due before it"),
    }
}

fn write_end(
    f: &mut fmt::Formatter<'_>,
    status: JobStatus,
    at: Option<&DateTime<Utc>>,
    error: Option<&String>,
    parked: bool,
) -> fmt::Result {
    f.write_str(if status == JobStatus::Cancelled { "was " } else { "" })?;
    f.write_str(status.as_str())?;
    write_time(f, at)?;
    write_why(f, error)?;
    f.write_str(if parked { "; later jobs are parked with it" } else { "" })
}

fn write_time(f: &mut fmt::Formatter<'_>, at: Option<&DateTime<Utc>>) -> fmt::Result {
    at.map_or(Ok(()), |at| write!(f, " at {}", clock_time(at)))
}

fn write_why(f: &mut fmt::Formatter<'_>, why: Option<&String>) -> fmt::Result {
    // The sentence goes on, or brings its own full stop.
    why.map_or(Ok(()), |why| write!(f, ": {}", one_line(why).trim_end_matches('.')))
}

/// Writes when the timeout ends a run. A silent process does not enforce it; another one does,
/// later.
fn write_timeout(
    f: &mut fmt::Formatter<'_>,
    at: Option<&DateTime<Utc>>,
    processor: Option<&ProcessorInfo>,
) -> fmt::Result {
    let Some(at) = at else { return Ok(()) };
    if !processor.is_some_and(|processor| processor.silent) {
        return write!(f, "; its timeout ends it at {}", clock_time(at));
    }
    let at = clock_time(&(*at + SILENT_GRACE));
    write!(
        f,
        "; its process enforces no timeout, and maintenance of another one ends it after {at}"
    )
}

fn write_jobs_behind(f: &mut fmt::Formatter<'_>, behind: BoundedCount, job: i64) -> fmt::Result {
    match behind.count {
        0 => Ok(()),
        1 => write!(f, " 1 job waits behind job {job}."),
        _ => write!(f, " {behind} jobs wait behind job {job}."),
    }
}

/// Writes what waits for the end of a halt: the job that is next, and those behind it.
fn write_halted_jobs(
    f: &mut fmt::Formatter<'_>,
    head: Option<i64>,
    behind: BoundedCount,
) -> fmt::Result {
    match head {
        Some(head) if behind.count == 0 => write!(f, " Job {head} waits behind it."),
        Some(head) => {
            let all = BoundedCount { count: behind.count + 1, ..behind };
            write!(f, " {all} jobs wait behind it, job {head} first.")
        }
        None => f.write_str(" No unfinished job waits behind it."),
    }
}

fn write_halt_end(f: &mut fmt::Formatter<'_>, until: Option<&DateTime<Utc>>) -> fmt::Result {
    until.map_or(Ok(()), |until| write!(f, " The halt ends by itself at {}.", clock_time(until)))
}

fn write_cancel(f: &mut fmt::Formatter<'_>, since: Option<&DateTime<Utc>>) -> fmt::Result {
    since.map_or(Ok(()), |since| write!(f, " A cancel is pending since {}.", clock_time(since)))
}

fn write_unserved(
    f: &mut fmt::Formatter<'_>,
    queue: &str,
    unserved: Option<&Unserved>,
) -> fmt::Result {
    let Some(Unserved { served }) = unserved else { return Ok(()) };
    write!(f, " No living processor or receiver serves queue {queue:?}")?;
    match &**served {
        [] => f.write_str(", and none lives at all."),
        served => write!(f, " (is the name mistyped? served are {}).", listed(served)),
    }
}

fn write_standby(f: &mut fmt::Formatter<'_>, at: Option<&DateTime<Utc>>) -> fmt::Result {
    let Some(at) = at else { return Ok(()) };
    write!(f, " This is read from a standby, as of {}:", clock_time(at))?;
    f.write_str(" sessions of the primary are not seen there.")
}

fn write_advice(f: &mut fmt::Formatter<'_>, advice: Option<String>) -> fmt::Result {
    advice.map_or(Ok(()), |advice| write!(f, " {advice}"))
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
        match (self.alive, self.seen_at) {
            (false, _) => f.write_str(", which is gone"),
            (true, Some(at)) if self.silent => {
                write!(f, ", which was last seen at {}", clock_time(&at))
            }
            _ => Ok(()),
        }
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

/// Returns how far a job is, behind how long it has run.
fn far(progress: Option<&Progress>) -> String {
    progress.map_or_else(String::new, |progress| format!(": {}", one_line(&progress.to_string())))
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

fn by_processor(processor: Option<&ProcessorInfo>) -> String {
    processor.map_or_else(|| String::from("a worker or a receiver"), ToString::to_string)
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

//! A schedule: its times, its job, and which due times make one.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

#[cfg(feature = "cron")]
use crate::job::cron::{CronMistake, CronTimes};
use crate::job::error::ScheduleError;
use crate::job::job_json::stored_job;
use crate::job::name;
use crate::job::new_job::{DATA_LIMIT, NewJob};
use crate::job::words::{Lane, clock_time};

/// How late a due time may be that [`Missed::Skip`] does not skip.
const GRACE: TimeDelta = TimeDelta::minutes(1);
/// The most jobs that one firing makes.
const MOST: u32 = 1000;
/// The longest interval.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// A job at set times, in its queue and group: `Schedule::cron("nightly", "0 3 * * *",
/// "Europe/Berlin")`.
///
/// It is stored in the database, under its name, by a processor that has it
/// ([`ProcessorBuilder::schedule`](crate::ProcessorBuilder::schedule)) or by an operator
/// ([`Operator::set_schedule`](crate::admin::Operator::set_schedule)). From then on every processor
/// with maintenance may fire it. Each due time makes one job, however many processes there are and
/// whichever of them dies; [`missed`](Self::missed) says what due times make when nobody could fire
/// them. The job is like any other: it takes its place at the end of its group when it is made, so
/// runs of one group never overlap.
///
/// Nothing is checked until [`build`](crate::ProcessorBuilder::build) or `set_schedule`, which name
/// what is wrong.
///
/// ```
/// # use std::time::Duration;
/// use seriatim::{Missed, NewJob, Overlap, Schedule};
///
/// let poll = Schedule::every("poll", Duration::from_mins(5))
///     .job(NewJob::new("imports", &"partner-7").group("partner-7"))
///     .missed(Missed::Skip)
///     .overlap(Overlap::Skip);
/// ```
#[derive(Debug, Clone)]
#[must_use = "a Schedule does nothing until a processor or an operator has it"]
pub struct Schedule {
    name: String,
    timing: Timing,
    job: Option<NewJob>,
    missed: Missed,
    overlap: Overlap,
}

/// When a schedule is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Timing {
    /// By a cron expression of five fields, in a time zone.
    Cron {
        /// The expression.
        spec: String,
        /// The name of the zone in the IANA database.
        zone: String,
    },
    /// At each multiple of an interval since 1970 in UTC: every 5 minutes is at :00, :05, :10.
    Every {
        /// The interval. In JSON: seconds.
        #[serde(serialize_with = "seconds")]
        interval: Duration,
    },
    /// Once.
    OnceAt {
        /// The time.
        at: DateTime<Utc>,
    },
}

/// The due times that make a job when they were missed: no process was there to fire them in time.
///
/// A processor fires a due time within some milliseconds, or a second if it is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missed {
    /// The last one makes a job, the others none. The default.
    #[default]
    Last,
    /// The last `at_most`, 1 to 1,000, make a job each, in their order.
    All {
        /// The most jobs.
        at_most: u32,
    },
    /// None that is more than a minute late makes a job.
    Skip,
}

/// Whether a due time makes a job while the schedule's last job waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// It does: the job waits behind the last one, if both are of one group. The default.
    #[default]
    Queue,
    /// It does not.
    Skip,
}

impl Schedule {
    /// Returns a schedule by a cron expression of five fields (minute, hour, day of the month,
    /// month, day of the week) in a time zone of the IANA database. The name has 1 to 200
    /// characters.
    ///
    /// Hours by number (`0 2,14 * * *`) mean times of day: a time that the clock leaves out comes
    /// right after the gap, and a time that the clock repeats comes once. Hours with `*` or a step
    /// follow the clock. If both the day of the month and the day of the week are set, either is
    /// enough.
    ///
    /// Needs the feature `cron`.
    #[cfg(feature = "cron")]
    pub fn cron(name: impl Into<String>, spec: impl Into<String>, zone: impl Into<String>) -> Self {
        Self::with(name.into(), Timing::Cron { spec: spec.into(), zone: zone.into() })
    }

    /// Returns a schedule that is due at each multiple of `interval` since 1970 in UTC: every 5
    /// minutes is at :00, :05, :10. Whole seconds, 1 s to 366 days. The name has 1 to 200
    /// characters.
    pub fn every(name: impl Into<String>, interval: Duration) -> Self {
        Self::with(name.into(), Timing::Every { interval })
    }

    /// Returns a schedule that is due once. A time that is over when the schedule is stored makes
    /// no job. The name has 1 to 200 characters.
    pub fn once_at(name: impl Into<String>, at: DateTime<Utc>) -> Self {
        Self::with(name.into(), Timing::OnceAt { at })
    }

    fn with(name: String, timing: Timing) -> Self {
        let (missed, overlap) = (Missed::default(), Overlap::default());
        Self { name, timing, job: None, missed, overlap }
    }

    /// Sets the job that each due time makes, in its queue and group. It has the due time in
    /// [`ActiveJob::scheduled_for`](crate::ActiveJob::scheduled_for). A `delay` and a
    /// `time_to_live` count from when it is made; `run_at`, `expires_at` and deduplication are
    /// refused. Layers of a client do not see it.
    pub fn job(mut self, job: impl Into<NewJob>) -> Self {
        self.job = Some(job.into());
        self
    }

    /// Sets which missed due times make a job. Default [`Missed::Last`].
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets whether a due time makes a job while the last one waits or runs. Default
    /// [`Overlap::Queue`].
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Returns the first `n` due times after `from`.
    ///
    /// # Errors
    /// [`ScheduleError::Spec`], [`ScheduleError::Zone`], [`ScheduleError::OutOfRange`].
    pub fn next(&self, n: usize, from: DateTime<Utc>) -> Result<Vec<DateTime<Utc>>, ScheduleError> {
        Ok(self.timing.times(&self.name)?.from(from).take(n).collect())
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks everything that needs no database.
    pub(crate) fn check(self, data_limit: usize) -> Result<CheckedSchedule, ScheduleError> {
        let Self { name, timing, job, missed, overlap } = self;
        name::check("schedule", &name, name::SCHEDULE_LIMIT)?;
        let times = timing.times(&name)?;
        if let Missed::All { at_most } = missed
            && !(1..=MOST).contains(&at_most)
        {
            return Err(ScheduleError::OutOfRange {
                schedule: name,
                setting: "at_most",
                value: at_most.to_string(),
                range: "1 to 1000",
            });
        }
        let Some(job) = job else {
            return Err(ScheduleError::NoJob { schedule: name });
        };
        let wrong = |mistake: String| ScheduleError::Job { schedule: name.clone(), mistake };
        let job = job
            .check(None, data_limit.min(DATA_LIMIT))
            .map_err(|error| wrong(error.to_string()))?;
        let (queue, group) = (job.queue.clone(), job.group.clone());
        let job = stored_job(job).map_err(|mistake| wrong(mistake.to_owned()))?;
        Ok(CheckedSchedule { name, queue, group, job, timing, times, missed, overlap })
    }
}

/// A schedule that the database will accept.
#[derive(Debug)]
pub(crate) struct CheckedSchedule {
    pub(crate) name: String,
    pub(crate) queue: String,
    pub(crate) group: Option<String>,
    /// As the column `job` has it: the text of JSON.
    pub(crate) job: String,
    pub(crate) timing: Timing,
    pub(crate) times: Times,
    pub(crate) missed: Missed,
    pub(crate) overlap: Overlap,
}

fn seconds<S: serde::Serializer>(interval: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(interval.as_secs())
}

impl Timing {
    /// Returns its words in the database: kind, spec and zone.
    pub(crate) fn words(&self) -> (&'static str, String, Option<&str>) {
        match self {
            Self::Cron { spec, zone } => ("cron", spec.clone(), Some(zone)),
            Self::Every { interval } => ("every", interval.as_secs().to_string(), None),
            Self::OnceAt { at } => ("once_at", at.to_rfc3339(), None),
        }
    }

    /// Reads the words of the database.
    pub(crate) fn parse(kind: &str, spec: &str, zone: Option<&str>) -> Option<Self> {
        match (kind, zone) {
            ("cron", Some(zone)) => {
                Some(Self::Cron { spec: spec.to_owned(), zone: zone.to_owned() })
            }
            ("every", None) => {
                spec.parse().ok().map(|s| Self::Every { interval: Duration::from_secs(s) })
            }
            ("once_at", None) => {
                let at = DateTime::parse_from_rfc3339(spec).ok()?;
                Some(Self::OnceAt { at: at.to_utc() })
            }
            _ => None,
        }
    }

    /// Checks the timing of a schedule of this name, and returns its times.
    pub(crate) fn times(&self, schedule: &str) -> Result<Times, ScheduleError> {
        let schedule = || schedule.to_owned();
        match self {
            #[cfg(feature = "cron")]
            Self::Cron { spec, zone } => match CronTimes::new(spec, zone) {
                Ok(times) => Ok(Times::Cron(Box::new(times))),
                Err(CronMistake::Spec(reason)) => {
                    Err(ScheduleError::Spec { schedule: schedule(), spec: spec.clone(), reason })
                }
                Err(CronMistake::Zone) => {
                    Err(ScheduleError::Zone { schedule: schedule(), zone: zone.clone() })
                }
            },
            #[cfg(not(feature = "cron"))]
            Self::Cron { .. } => Err(ScheduleError::NoCron { schedule: schedule() }),
            Self::Every { interval } => {
                let whole = interval.subsec_nanos() == 0 && !interval.is_zero();
                match i64::try_from(interval.as_secs()) {
                    Ok(seconds) if whole && *interval <= LONGEST => Ok(Times::Every(seconds)),
                    _ => Err(ScheduleError::OutOfRange {
                        schedule: schedule(),
                        setting: "every",
                        value: format!("{interval:?}"),
                        range: "1 s to 366 days, in whole seconds",
                    }),
                }
            }
            Self::OnceAt { at } => Ok(Times::Once(*at)),
        }
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron { spec, zone } => write!(f, "{spec} in {zone}"),
            Self::Every { interval } => {
                let seconds = interval.as_secs();
                let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
                let unit = units.into_iter().find(|(length, _)| seconds.is_multiple_of(*length));
                let (length, unit) = unit.unwrap_or((1, "s"));
                write!(f, "every {} {unit}", seconds / length)
            }
            Self::OnceAt { at } => write!(f, "once at {}", at.format("%Y-%m-%d %H:%M:%S UTC")),
        }
    }
}

impl Missed {
    /// Returns its words in the database: the policy and its limit.
    pub(crate) fn words(self) -> (&'static str, Option<i32>) {
        match self {
            Self::Last => ("last", None),
            // Its range is checked before.
            Self::All { at_most } => ("all", Some(i32::try_from(at_most).unwrap_or(i32::MAX))),
            Self::Skip => ("skip", None),
        }
    }

    /// Reads the words of the database.
    pub(crate) fn parse(word: &str, at_most: Option<i32>) -> Option<Self> {
        match (word, at_most) {
            ("last", None) => Some(Self::Last),
            ("all", Some(n)) => Some(Self::All { at_most: n.unsigned_abs() }),
            ("skip", None) => Some(Self::Skip),
            _ => None,
        }
    }
}

/// Reads `last`, `skip`, or `all:10` for the last ten.
impl FromStr for Missed {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let missed = match text.split_once(':') {
            Some(("all", at_most)) => at_most.parse().ok().map(|at_most| Self::All { at_most }),
            Some(_) => None,
            None => Self::parse(text, None),
        };
        missed.ok_or_else(|| ScheduleError::Missed { given: text.to_owned() })
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All { at_most } => write!(f, "all, {at_most} at most"),
            other => f.write_str(other.words().0),
        }
    }
}

impl Overlap {
    /// Returns the word that the database uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Skip => "skip",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Queue, Self::Skip].into_iter().find(|overlap| overlap.as_str() == word)
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The times of a schedule, as they are computed.
#[derive(Debug, Clone)]
pub(crate) enum Times {
    #[cfg(feature = "cron")]
    Cron(Box<CronTimes>),
    /// Every so many seconds.
    Every(i64),
    Once(DateTime<Utc>),
}

/// The effect of the due times up to now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The ones that make a job, the earliest first.
    pub(crate) due: Vec<DateTime<Utc>>,
    pub(crate) next: Option<DateTime<Utc>>,
}

impl Times {
    /// Returns the first time after `time`.
    pub(crate) fn after(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            #[cfg(feature = "cron")]
            Self::Cron(times) => times.after(time),
            Self::Every(seconds) => {
                let next = time.timestamp().div_euclid(*seconds).checked_add(1)?;
                DateTime::from_timestamp(next.checked_mul(*seconds)?, 0)
            }
            Self::Once(at) => Some(*at).filter(|at| *at > time),
        }
    }

    /// Returns the times after `time`, in their order.
    fn from(&self, time: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> {
        std::iter::successors(self.after(time), |last| self.after(*last))
    }

    /// Decides about a schedule that was due at `next_fire`. Due times up to `counts_from` make no
    /// job, whatever `missed` says.
    pub(crate) fn plan(
        &self,
        missed: Missed,
        next_fire: DateTime<Utc>,
        counts_from: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Plan {
        let before = next_fire.checked_sub_signed(TimeDelta::microseconds(1)).unwrap_or(next_fire);
        let begin = before.max(counts_from);
        let due = match missed {
            Missed::Last => self.last(1, begin, now),
            Missed::All { at_most } => self.last(at_most.min(MOST), begin, now),
            Missed::Skip => {
                let begin = now.checked_sub_signed(GRACE).map_or(begin, |late| begin.max(late));
                self.last(MOST, begin, now)
            }
        };
        Plan { due, next: self.after(now) }
    }

    /// Returns the last `n` times after `begin` and up to `now`. It looks at a span before `now`,
    /// and at longer ones until it has enough: a year of minutes is not gone through.
    fn last(&self, n: u32, begin: DateTime<Utc>, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let mut span = TimeDelta::minutes(1);
        loop {
            let from = now.checked_sub_signed(span).map_or(begin, |from| begin.max(from));
            let mut found = VecDeque::new();
            for time in self.from(from).take_while(|time| *time <= now) {
                if found.len() == n {
                    found.pop_front();
                }
                found.push_back(time);
            }
            if found.len() == n || from == begin {
                return found.into();
            }
            span = span.checked_mul(4).unwrap_or(TimeDelta::MAX);
        }
    }
}

/// A schedule as the database has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoredSchedule {
    /// Its name.
    pub name: String,
    /// The queue of its jobs.
    pub queue: String,
    /// The group of its jobs.
    pub group: Option<String>,
    /// When it is due.
    pub timing: Timing,
    /// Which missed due times make a job.
    pub missed: Missed,
    /// Whether a due time makes a job while the last one waits or runs.
    pub overlap: Overlap,
    /// Due times up to here make no job: when it was stored, got another timing, or was resumed.
    pub counts_from: DateTime<Utc>,
    /// The last due time that made a job.
    pub last_fire: Option<DateTime<Utc>>,
    /// The next due time; `None`: there is none.
    pub next_fire: Option<DateTime<Utc>>,
    /// The last job that it made, which may have been deleted.
    pub last_job: Option<i64>,
    /// When it was paused; `None`: it is not.
    pub paused_at: Option<DateTime<Utc>>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// Why it was paused.
    pub pause_reason: Option<String>,
}

/// As a sentence: `schedule "nightly" is set: a job for queue "q", 0 3 * * * in UTC; next at …`.
impl fmt::Display for StoredSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, timing, queue, group, .. } = self;
        let lane = Lane { queue, group: group.as_deref() };
        write!(f, "schedule {name:?} is set: a job for {lane}, {timing}; ")?;
        match (self.next_fire, self.paused_at) {
            (_, Some(_)) => f.write_str("paused"),
            (Some(next), None) => write!(f, "next at {}", clock_time(&next)),
            (None, None) => f.write_str("its time is over, and it makes no job"),
        }
    }
}

impl StoredSchedule {
    /// Returns the first `n` due times after `from`, as if it was not paused.
    ///
    /// # Errors
    /// [`ScheduleError::NoCron`] without the feature `cron`; [`ScheduleError::Spec`] or
    /// [`ScheduleError::Zone`] if this version cannot read what another one stored.
    pub fn next(&self, n: usize, from: DateTime<Utc>) -> Result<Vec<DateTime<Utc>>, ScheduleError> {
        Ok(self.timing.times(&self.name)?.from(from).take(n).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> DateTime<Utc> {
        time.parse().unwrap()
    }

    #[test]
    fn an_interval_is_due_at_its_multiples() {
        let every = Schedule::every("s", Duration::from_mins(5));
        let next = every.next(3, at("2026-03-01T10:02:00Z")).unwrap();
        let expected = ["10:05", "10:10", "10:15"];
        assert_eq!(next, expected.map(|time| at(&format!("2026-03-01T{time}:00Z"))));
        assert_eq!(every.next(1, next[0]).unwrap(), [next[1]]);
        assert_eq!(every.next(1, at("1969-12-31T23:58:00Z")).unwrap(), [DateTime::UNIX_EPOCH]);
        for wrong in [0, 500, 1500, 367 * 86_400_000] {
            let wrong = Schedule::every("s", Duration::from_millis(wrong));
            let error = wrong.next(1, next[0]).unwrap_err().to_string();
            assert!(error.contains("every of schedule \"s\""), "{error}");
        }
    }

    #[test]
    fn a_year_of_minutes_is_not_gone_through() {
        let (times, begin, now) =
            (Times::Every(60), at("2000-01-01T00:00:00Z"), at("2026-03-01T10:00:30Z"));
        let plan = |missed| times.plan(missed, begin, begin, now);
        let all = plan(Missed::All { at_most: 1000 });
        assert_eq!((all.due.len(), all.due.last()), (1000, Some(&at("2026-03-01T10:00:00Z"))));
        assert_eq!(plan(Missed::Last).due, all.due[999..]);
        assert_eq!(plan(Missed::Skip).due, all.due[999..]);
        assert_eq!(all.next, Some(at("2026-03-01T10:01:00Z")));
    }

    #[test]
    fn once_is_once() {
        let (time, now) = (at("2026-03-01T10:00:00Z"), at("2026-03-02T10:00:00Z"));
        let plan = |missed| Times::Once(time).plan(missed, time, DateTime::UNIX_EPOCH, now);
        assert_eq!(plan(Missed::Last), Plan { due: vec![time], next: None });
        assert_eq!(plan(Missed::Skip), Plan { due: vec![], next: None });
    }

    #[test]
    fn a_timing_has_words_for_people() {
        let every = |seconds| Timing::Every { interval: Duration::from_secs(seconds) }.to_string();
        let said = [90, 300, 7200, 86_400].map(every);
        assert_eq!(said, ["every 90 s", "every 5 min", "every 2 h", "every 1 d"]);
    }

    #[test]
    fn a_job_is_stored_without_its_queue_and_with_its_numbers_as_they_are() {
        let schedule = |job| Schedule::every("s", Duration::from_secs(1)).job(job);
        let job = NewJob::new("q", &"x").group("g").priority(3);
        let checked = schedule(job).check(100).unwrap();
        assert_eq!(checked.job, "{\"data\":\"x\",\"priority\":3}");
        let bytes = NewJob::bytes("q", "image/png", [1, 255]);
        let bytes = schedule(bytes).check(100).unwrap().job;
        assert_eq!(bytes, "{\"content_type\":\"image/png\",\"payload\":\"01ff\"}");
        let refused = |job| schedule(job).check(100).map(|_| ()).unwrap_err().to_string();
        let job = || NewJob::new("q", &1);
        assert!(refused(job().run_at(Utc::now())).contains("run_at"));
        assert!(refused(job().expires_at(Utc::now())).contains("time_to_live"));
        assert!(refused(job().dedup_id("x")).contains("deduplication"));
        assert!(refused(job().header("a", "x".repeat(4050))).contains("headers"));
        assert!(refused(job().group("")).contains("group name is empty"));
        let none = Schedule::every("s", Duration::from_secs(1)).check(100).unwrap_err();
        assert!(none.to_string().contains("has no job"));
    }
}

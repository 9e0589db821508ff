//! The effects of changes by hand, in words.

use std::fmt;

use chrono::{DateTime, Utc};

use crate::job::schedule::StoredSchedule;
use crate::job::words::{clock_time, counted, counted_are};

/// The effect of a change by hand whose method returns no more than a number, as a sentence.
///
/// A program that makes such changes prints it behind them:
/// `Effect::Skipped { job }.to_string()`. It begins in lower case, and has no full stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect<'a> {
    /// The effect of [`Operator::skip`](crate::admin::Operator::skip).
    Skipped {
        /// The job.
        job: i64,
    },
    /// The effect of [`Operator::run_now`](crate::admin::Operator::run_now).
    DueNow {
        /// The job.
        job: i64,
    },
    /// The effect of [`Operator::abort`](crate::admin::Operator::abort).
    Aborted {
        /// The job.
        job: i64,
    },
    /// The effect of [`Operator::pause_queue`](crate::admin::Operator::pause_queue) and its like.
    Paused {
        /// The queue.
        queue: &'a str,
        /// The group; `None`: the whole queue.
        group: Option<&'a str>,
        /// When it ends by itself.
        until: Option<DateTime<Utc>>,
    },
    /// The effect of [`Operator::unpause_queue`](crate::admin::Operator::unpause_queue), or of a
    /// group.
    Resumed {
        /// The queue.
        queue: &'a str,
        /// The group; `None`: the whole queue.
        group: Option<&'a str>,
    },
    /// The effect of [`Operator::unhalt_group`](crate::admin::Operator::unhalt_group).
    Unhalted {
        /// The queue.
        queue: &'a str,
        /// The group.
        group: &'a str,
    },
    /// The effect of [`Operator::park_group`](crate::admin::Operator::park_group).
    Parked {
        /// The queue.
        queue: &'a str,
        /// The group.
        group: &'a str,
        /// The job behind which it is parked.
        job: i64,
    },
    /// The effect of [`Operator::discard_parked`](crate::admin::Operator::discard_parked).
    ParkedDiscarded {
        /// The queue.
        queue: &'a str,
        /// The group.
        group: &'a str,
        /// How many were discarded.
        jobs: u64,
    },
    /// The effect of [`Operator::discard_jobs`](crate::admin::Operator::discard_jobs).
    Discarded {
        /// How many were discarded.
        jobs: u64,
    },
    /// The effect of [`Operator::cancel_move_task`](crate::admin::Operator::cancel_move_task).
    MoveTaskCancelled {
        /// The task.
        task: i64,
        /// How many jobs it has moved.
        moved: u64,
    },
    /// The effect of [`Operator::set_schedule`](crate::admin::Operator::set_schedule).
    ScheduleSet {
        /// The schedule, as it is stored.
        schedule: &'a StoredSchedule,
    },
    /// The effect of [`Operator::pause_schedule`](crate::admin::Operator::pause_schedule).
    SchedulePaused {
        /// The schedule.
        schedule: &'a str,
    },
    /// The effect of [`Operator::resume_schedule`](crate::admin::Operator::resume_schedule).
    ScheduleResumed {
        /// The schedule.
        schedule: &'a str,
    },
    /// The effect of [`Operator::fire_schedule`](crate::admin::Operator::fire_schedule).
    ScheduleFired {
        /// The schedule.
        schedule: &'a str,
        /// The job that it has made; `None` in a preview.
        job: Option<i64>,
    },
    /// The effect of [`Operator::remove_schedule`](crate::admin::Operator::remove_schedule).
    ScheduleRemoved {
        /// The schedule.
        schedule: &'a str,
    },
    /// The effect of [`Operator::abandon_batch`](crate::admin::Operator::abandon_batch).
    BatchAbandoned {
        /// The batch.
        batch: i64,
    },
}

impl fmt::Display for Effect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Skipped { job } => write!(
                f,
                "job {job} is given up, and its group goes on; it stays a dead letter, which a \
                 redrive would queue again, and a discard end for good"
            ),
            Self::DueNow { job } => write!(f, "job {job} is due now, and runs at its turn"),
            Self::Aborted { job } => write!(
                f,
                "the run of job {job} is ended, and its handler dropped; the attempt counts, and \
                 the job runs again if it has one left"
            ),
            Self::Paused { queue, group, until } => {
                write!(f, "{} is paused: ", Lane { queue, group })?;
                f.write_str("jobs that run go on, and no other begins, ")?;
                match until {
                    Some(until) => write!(f, "until {} or until it is resumed", clock_time(&until)),
                    None => f.write_str("until it is resumed"),
                }
            }
            Self::Resumed { queue, group } => write!(f, "{} goes on", Lane { queue, group }),
            Self::Unhalted { queue, group } => write!(
                f,
                "{} goes on with its next job; the one that halted it stays failed",
                Lane { queue, group: Some(group) }
            ),
            Self::Parked { queue, group, job } => write!(
                f,
                "job {job} of {} is a dead letter from now on, and those that wait behind it step \
                 aside with it, until they are redriven or discarded; later ones run",
                Lane { queue, group: Some(group) }
            ),
            Self::ParkedDiscarded { queue, group, jobs } => write!(
                f,
                "{} given up of {}: {} as cancelled; the failed one stays failed",
                counted_are(jobs, "parked job"),
                Lane { queue, group: Some(group) },
                if jobs == 1 { "it ends" } else { "they end" }
            ),
            Self::Discarded { jobs } => {
                write!(f, "{} given up: ", counted_are(jobs, "dead letter"))?;
                f.write_str(match jobs {
                    1 => "it ends as cancelled, and a halt by it ends",
                    _ => "they end as cancelled, and halts by them end",
                })
            }
            Self::MoveTaskCancelled { task, moved } => write!(
                f,
                "move task {task} ends; {} moved and stay where they are, the others stay in their \
                 queue",
                counted(moved, "job")
            ),
            Self::ScheduleSet { schedule } => {
                let StoredSchedule { name, timing, queue, group, .. } = schedule;
                let lane = Lane { queue, group: group.as_deref() };
                write!(f, "schedule {name:?} is set: a job for {lane}, {timing}; ")?;
                match (schedule.next_fire, schedule.paused_at) {
                    (_, Some(_)) => f.write_str("paused"),
                    (Some(next), None) => write!(f, "next at {}", clock_time(&next)),
                    (None, None) => f.write_str("its time is over, and it makes no job"),
                }
            }
            Self::SchedulePaused { schedule } => {
                write!(f, "schedule {schedule:?} is paused: it makes no job until it is resumed")
            }
            Self::ScheduleResumed { schedule } => {
                write!(f, "schedule {schedule:?} goes on, and does not make up for the pause")
            }
            Self::ScheduleFired { schedule, job } => {
                write!(f, "schedule {schedule:?} has made ")?;
                match job {
                    Some(job) => write!(f, "job {job}")?,
                    None => f.write_str("a job")?,
                }
                f.write_str("; its times stay as they are")
            }
            Self::ScheduleRemoved { schedule } => {
                write!(f, "schedule {schedule:?} is removed; its jobs stay")
            }
            Self::BatchAbandoned { batch } => {
                write!(f, "batch {batch} is abandoned: no follow-up comes; its jobs stay")
            }
        }
    }
}

/// A queue, or a group of it.
struct Lane<'a> {
    queue: &'a str,
    group: Option<&'a str>,
}

impl fmt::Display for Lane<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            write!(f, "group {group:?} of ")?;
        }
        write!(f, "queue {:?}", self.queue)
    }
}

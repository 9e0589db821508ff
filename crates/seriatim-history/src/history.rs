//! A history, put in order: each job with all its observations.

use std::collections::HashMap;

use crate::event::{Counted, Delayed, Ended, Enqueued, Found, Left, Name, Of, Said, Time, When};

/// A history, put in order.
#[derive(Debug, Default)]
pub struct History {
    /// The number of events.
    pub events: usize,
    /// How far a time may be from the true one, either way.
    pub uncertainty: Time,
    /// How delayed jobs affect the jobs behind them.
    pub delayed: Delayed,
    /// Jobs may be claimed while earlier ones run.
    pub followers: bool,
    /// Its jobs.
    pub jobs: Vec<Job>,
    /// The groups.
    pub groups: Vec<Group>,
    /// The processes.
    pub processes: Vec<Process>,
    /// Other faults that may have cost attempts.
    pub faults: Vec<Fault>,
    /// The changes of limits, in the order of their begins.
    pub limits: Vec<Limit>,
    /// The changes of rates, in the order of their begins.
    pub rates: Vec<Rate>,
    /// The batches.
    pub batches: Vec<Batch>,
    /// The schedules.
    pub schedules: Vec<Schedule>,
    /// How often each effect was there at the end.
    pub found: HashMap<Name, u64>,
    /// When nothing was left to do.
    pub drained: Option<Time>,
    /// The first time.
    pub first: Time,
    /// The last time.
    pub last: Time,
    pub(crate) by_name: HashMap<Name, usize>,
    pub(crate) group_names: HashMap<(String, Name), usize>,
    pub(crate) process_names: HashMap<Name, usize>,
    pub(crate) batch_names: HashMap<Name, usize>,
    pub(crate) schedule_names: HashMap<Name, usize>,
    /// The latest end of the faults up to each.
    pub(crate) fault_ends: Vec<Time>,
}

/// A job, with all its observations.
#[derive(Debug)]
pub struct Job {
    /// Its name.
    pub name: Name,
    /// Its enqueue, and the answer to its producer.
    pub enqueue: Option<Enqueue>,
    /// In the order of their starts.
    pub runs: Vec<Run>,
    /// Its settles by receipt.
    pub settles: Vec<Settle>,
    /// When it left the line.
    pub leaves: Vec<Leave>,
    /// In the order of their begins.
    pub returns: Vec<Return>,
    /// The effects that its handlers were about to write.
    pub effects: Vec<Effect>,
    /// The queue's answer about it at the end.
    pub status: Option<Found>,
    /// How many of its attempts do not count, as the queue says.
    pub forgiven: Option<u32>,
    pub(crate) newest: Option<usize>,
    pub(crate) ends: Vec<(u32, usize, Time, Ended)>,
}

/// An enqueue, and its answer to the producer.
#[derive(Debug)]
pub struct Enqueue {
    /// Its group, by its index.
    pub group: Option<usize>,
    /// The process, by its index.
    pub process: Option<usize>,
    /// When the call began.
    pub begin: Time,
    /// When it ended.
    pub end: Option<Time>,
    /// How it ended.
    pub outcome: Enqueued,
    /// The attempt in whose transaction it was enqueued.
    pub with: Option<Of>,
    /// The queue's own number of the job.
    pub place: Option<i64>,
    /// Its limit of attempts.
    pub max_attempts: Option<u32>,
    /// When it is due.
    pub run_at: Option<Time>,
    /// Its limit key.
    pub limit_key: Option<Name>,
    /// The batch that it joined, by its index.
    pub batch: Option<usize>,
}

/// A run of a handler.
#[derive(Debug)]
pub struct Run {
    /// The number of the attempt.
    pub attempt: u32,
    /// The process, by its index.
    pub process: usize,
    /// When it began.
    pub start: Time,
    /// When it ended.
    pub end: Option<(Time, Ended)>,
}

/// A settle by receipt.
#[derive(Debug)]
pub struct Settle {
    /// The number of the attempt.
    pub attempt: u32,
    /// When the call began.
    pub begin: Time,
    /// The queue's answer.
    pub answer: Said,
}

/// A job that left the line other than by a handler.
#[derive(Debug)]
pub struct Leave {
    /// How it left.
    pub left: Left,
    /// When the call began.
    pub begin: Time,
    /// When it ended.
    pub end: Option<Time>,
}

/// A job that was put back.
#[derive(Debug)]
pub struct Return {
    /// When the call began.
    pub begin: Time,
    /// When it ended.
    pub end: Option<Time>,
}

/// An effect that a handler was about to write.
#[derive(Debug)]
pub struct Effect {
    /// The number of the attempt.
    pub attempt: u32,
    /// Its name.
    pub key: Name,
    /// When.
    pub at: Time,
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Its queue.
    pub queue: String,
    /// Its name.
    pub name: Name,
    /// Its jobs.
    pub jobs: Vec<usize>,
}

/// How many jobs of a queue may start in a time.
#[derive(Debug)]
pub struct Rate {
    /// The queue.
    pub queue: String,
    /// How many; `None`: any number.
    pub starts: Option<u32>,
    /// In this time.
    pub per: Time,
    /// How many of them at once.
    pub burst: u32,
    /// When the call began.
    pub begin: Time,
    /// When it ended.
    pub end: Time,
}

/// How many jobs of a queue, or groups of each limit key, may run at once.
#[derive(Debug)]
pub struct Limit {
    /// The queue.
    pub queue: String,
    /// The things that it counts.
    pub of: Counted,
    /// How many; `None`: any number.
    pub limit: Option<u32>,
    /// When the call began.
    pub begin: Time,
    /// When it ended.
    pub end: Time,
}

/// A batch.
#[derive(Debug)]
pub struct Batch {
    /// Its name.
    pub name: Name,
    /// How its jobs must have ended for its follow-up; `None`: it is not known to be opened.
    pub when: Option<When>,
    /// When it was surely there.
    pub opened: Option<Time>,
    /// When the first call that seals it began.
    pub seal: Option<Time>,
    /// When it was surely sealed.
    pub sealed: Option<Time>,
    /// The jobs that may have joined it.
    pub jobs: Vec<usize>,
    /// Its follow-ups.
    pub follow_ups: Vec<usize>,
}

/// A schedule that makes a job at each multiple of a time.
#[derive(Debug)]
pub struct Schedule {
    /// Its name.
    pub name: Name,
    /// The time between two due times.
    pub every: Option<Time>,
    /// Due times up to here make no job.
    pub from: Time,
    /// All due times up to here have made theirs.
    pub until: Option<Time>,
    /// Its jobs, and the times that they were made for.
    pub jobs: Vec<(Time, usize)>,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its name.
    pub name: Name,
    /// Between which times it ended.
    pub gone: Option<(Time, Time)>,
}

/// Another fault that may have cost attempts.
#[derive(Debug)]
pub struct Fault {
    /// The fault, in words.
    pub what: String,
    /// When the call began.
    pub begin: Time,
    /// When it ended.
    pub end: Time,
}

impl History {
    pub(crate) fn find(&self, name: &Name) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns whether a moment was before another one, whatever the clocks did.
    pub(crate) fn surely_before(&self, a: Time, b: Time) -> bool {
        a.saturating_add(2 * self.uncertainty) < b
    }

    /// Returns whether a failure was, or may have been, between two moments.
    pub(crate) fn fault_between(&self, from: Time, to: Time) -> bool {
        let slack = 2 * self.uncertainty;
        let begun = self.faults.partition_point(|fault| fault.begin <= to.saturating_add(slack));
        begun > 0 && self.fault_ends[begun - 1].saturating_add(slack) >= from
    }

    /// Returns until when a handler surely ran, if it had not ended by itself.
    pub fn until(&self, run: &Run) -> Time {
        match (run.end, self.processes[run.process].gone) {
            (Some((at, _)), _) => at,
            (None, Some((begin, _))) => begin.max(run.start),
            (None, None) => self.last,
        }
    }
}

impl Job {
    pub(crate) fn run(&self, attempt: u32) -> Option<&Run> {
        // In the order of their attempts, unless an attempt's number is wrong.
        match self.runs.binary_search_by_key(&attempt, |run| run.attempt) {
            Ok(at) => Some(&self.runs[at]),
            Err(_) => self.runs.iter().find(|run| run.attempt == attempt),
        }
    }

    /// Returns the run with the highest attempt.
    pub(crate) fn newest(&self) -> Option<&Run> {
        self.newest.map(|at| &self.runs[at])
    }

    /// Returns whether a request to leave the line may have been there between two moments: the job
    /// may have been claimed by then, and ended before its handler began.
    pub(crate) fn is_asked_to_leave(&self, history: &History, from: Time, to: Time) -> bool {
        self.leaves.iter().any(|leave| {
            let end = leave.end.unwrap_or(leave.begin);
            !history.surely_before(to, leave.begin) && !history.surely_before(end, from)
        })
    }

    pub(crate) fn settles_of(&self, attempt: u32) -> &[Settle] {
        let from = self.settles.partition_point(|settle| settle.attempt < attempt);
        let to = self.settles.partition_point(|settle| settle.attempt <= attempt);
        &self.settles[from..to]
    }
}

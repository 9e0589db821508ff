//! A history, put in order: each job with all its observations.

use std::collections::HashMap;

use crate::event::{Delayed, Ended, Enqueued, Found, Left, Name, Of, Said, Time};

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

    pub(crate) fn settles_of(&self, attempt: u32) -> &[Settle] {
        let from = self.settles.partition_point(|settle| settle.attempt < attempt);
        let to = self.settles.partition_point(|settle| settle.attempt <= attempt);
        &self.settles[from..to]
    }
}

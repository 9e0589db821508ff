//! A history, put in order: each job with all its observations.

use std::collections::HashMap;

use super::event::{Delayed, Ended, Enqueued, Found, Left, Name, Of, Said, Time};

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) events: usize,
    pub(crate) uncertainty: Time,
    pub(crate) delayed: Delayed,
    pub(crate) followers: bool,
    pub(crate) jobs: Vec<Job>,
    pub(crate) groups: Vec<Group>,
    pub(crate) processes: Vec<Process>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) found: HashMap<Name, u64>,
    pub(crate) drained: Option<Time>,
    pub(crate) first: Time,
    pub(crate) last: Time,
    pub(super) by_name: HashMap<Name, usize>,
    pub(super) group_names: HashMap<(String, Name), usize>,
    pub(super) process_names: HashMap<Name, usize>,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: Name,
    pub(crate) enqueue: Option<Enqueue>,
    /// In the order of their starts.
    pub(crate) runs: Vec<Run>,
    pub(crate) settles: Vec<Settle>,
    pub(crate) leaves: Vec<Leave>,
    /// In the order of their begins.
    pub(crate) returns: Vec<Return>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) status: Option<Found>,
    pub(super) newest: Option<usize>,
    pub(super) ends: Vec<(u32, usize, Time, Ended)>,
}

#[derive(Debug)]
pub(crate) struct Enqueue {
    pub(crate) group: Option<usize>,
    pub(crate) process: Option<usize>,
    pub(crate) begin: Time,
    pub(crate) end: Option<Time>,
    pub(crate) outcome: Enqueued,
    pub(crate) with: Option<Of>,
    pub(crate) place: Option<i64>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) run_at: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) attempt: u32,
    pub(crate) process: usize,
    pub(crate) start: Time,
    pub(crate) end: Option<(Time, Ended)>,
}

#[derive(Debug)]
pub(crate) struct Settle {
    pub(crate) attempt: u32,
    pub(crate) begin: Time,
    pub(crate) answer: Said,
}

#[derive(Debug)]
pub(crate) struct Leave {
    pub(crate) left: Left,
    pub(crate) begin: Time,
    pub(crate) end: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Return {
    pub(crate) begin: Time,
    pub(crate) end: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Effect {
    pub(crate) attempt: u32,
    pub(crate) key: Name,
    pub(crate) at: Time,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) queue: String,
    pub(crate) name: Name,
    pub(crate) jobs: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: Name,
    pub(crate) gone: Option<(Time, Time)>,
}

#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) begin: Time,
    pub(crate) end: Time,
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
    pub(crate) fn until(&self, run: &Run) -> Time {
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

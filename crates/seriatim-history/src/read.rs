//! Reads a history, line by line.

use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::event::{Delayed, Enqueued, Event, Name, Time};
use crate::history::{
    Effect, Enqueue, Fault, Group, History, Job, Leave, Process, Return, Run, Settle,
};

/// Bounds times, which are added to each other.
const FARTHEST: Time = 1 << 60;

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The line could not be read, or the file could not be opened.
    #[error("line {line} cannot be read")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Why.
        source: std::io::Error,
    },
    /// The line is no event.
    #[error("line {line} is no event")]
    Event {
        /// Its number, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// The event cannot have been.
    #[error("line {line}: {what}")]
    Sense {
        /// Its number, from 1.
        line: usize,
        /// Why.
        what: String,
    },
    /// The events do not fit together.
    #[error("{0}")]
    Whole(String),
}

impl History {
    /// Reads the events of a file; `-` is the standard input.
    ///
    /// # Errors
    /// [`ReadError`], also if the file cannot be opened.
    pub fn read_file(file: &Path) -> Result<Self, ReadError> {
        if file.as_os_str() == "-" {
            return Self::read(std::io::stdin().lock());
        }
        let opened = File::open(file).map_err(|source| ReadError::Line { line: 1, source })?;
        Self::read(BufReader::new(opened))
    }

    /// Reads events, one per line. Skips empty lines.
    ///
    /// # Errors
    /// [`ReadError`] names the first line that is no event, or what cannot have been.
    pub fn read(lines: impl BufRead) -> Result<Self, ReadError> {
        let mut history = Self { first: Time::MAX, last: Time::MIN, ..Self::default() };
        for (at, text) in lines.lines().enumerate() {
            let line = at + 1;
            let text = text.map_err(|source| ReadError::Line { line, source })?;
            if text.trim().is_empty() {
                continue;
            }
            let event =
                serde_json::from_str(&text).map_err(|source| ReadError::Event { line, source })?;
            history.take(event).map_err(|what| ReadError::Sense { line, what })?;
        }
        history.finish()?;
        Ok(history)
    }

    /// A time of an observation.
    fn saw(&mut self, begin: Time, end: Option<Time>) -> Result<(), String> {
        for time in std::iter::once(begin).chain(end) {
            if !(-FARTHEST..=FARTHEST).contains(&time) {
                return Err(format!("the time {time} is beyond 2^60 microseconds"));
            }
        }
        if end.is_some_and(|end| end < begin) {
            return Err(format!("it ends before it begins, at {begin}"));
        }
        self.first = self.first.min(begin);
        self.last = self.last.max(end.unwrap_or(begin));
        Ok(())
    }

    fn job(&mut self, name: Name) -> &mut Job {
        let at = match self.by_name.entry(name) {
            Entry::Occupied(there) => *there.get(),
            Entry::Vacant(new) => {
                self.jobs.push(Job::new(new.key().clone()));
                *new.insert(self.jobs.len() - 1)
            }
        };
        &mut self.jobs[at]
    }

    fn group(&mut self, queue: String, name: Name) -> usize {
        let groups = &mut self.groups;
        *self.group_names.entry((queue, name)).or_insert_with_key(|(queue, name)| {
            groups.push(Group { queue: queue.clone(), name: name.clone(), jobs: Vec::new() });
            groups.len() - 1
        })
    }

    fn process(&mut self, name: Name) -> usize {
        let processes = &mut self.processes;
        *self.process_names.entry(name).or_insert_with_key(|name| {
            processes.push(Process { name: name.clone(), gone: None });
            processes.len() - 1
        })
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        self.events += 1;
        match event {
            Event::History { version, uncertainty, delayed, followers } => {
                if version != 1 {
                    return Err(format!("version {version} of the format is not known, 1 is"));
                }
                if !(0..=FARTHEST / 4).contains(&uncertainty) {
                    return Err(format!("the uncertainty {uncertainty} is no span of time"));
                }
                // Several files may have it, each for itself: the value in favour of the queue.
                self.uncertainty = self.uncertainty.max(uncertainty);
                self.followers |= followers;
                if delayed == Delayed::Pass {
                    self.delayed = delayed;
                }
            }
            Event::Enqueue { .. } => self.take_enqueue(event)?,
            Event::Start { job, attempt, process, at } => {
                self.saw(at, None)?;
                let process = self.process(process);
                self.job(job).runs.push(Run { attempt, process, start: at, end: None });
            }
            Event::End { job, attempt, process, at, outcome } => {
                self.saw(at, None)?;
                let process = self.process(process);
                self.job(job).ends.push((attempt, process, at, outcome));
            }
            Event::Settle { job, attempt, begin, end, answer } => {
                self.saw(begin, end)?;
                self.job(job).settles.push(Settle { attempt, begin, answer });
            }
            Event::Leave { job, left, begin, end } => {
                self.saw(begin, end)?;
                self.job(job).leaves.push(Leave { left, begin, end });
            }
            Event::Return { job, begin, end } => {
                self.saw(begin, end)?;
                self.job(job).returns.push(Return { begin, end });
            }
            Event::Gone { process, begin, end } => {
                self.saw(begin, Some(end))?;
                let at = self.process(process);
                if self.processes[at].gone.is_some() {
                    return Err(format!("process {} was gone before", self.processes[at].name));
                }
                self.processes[at].gone = Some((begin, end));
                let what = format!("process {} ended", self.processes[at].name);
                self.faults.push(Fault { what, begin, end });
            }
            Event::Fault { what, begin, end } => {
                self.saw(begin, Some(end))?;
                self.faults.push(Fault { what, begin, end });
            }
            Event::Effect { job, attempt, key, at } => {
                self.saw(at, None)?;
                self.job(job).effects.push(Effect { attempt, key, at });
            }
            Event::Found { key, count } => {
                let found = self.found.entry(key).or_default();
                *found = found.saturating_add(count);
            }
            Event::Status { job, status } => self.job(job).status = Some(status),
            Event::Drained { at } => {
                self.saw(at, None)?;
                self.drained = self.drained.max(Some(at));
            }
        }
        Ok(())
    }

    fn take_enqueue(&mut self, event: Event) -> Result<(), String> {
        let Event::Enqueue {
            job,
            queue,
            group,
            process,
            begin,
            end,
            outcome,
            with,
            place,
            max_attempts,
            run_at,
        } = event
        else {
            return Ok(());
        };
        self.saw(begin, end)?;
        if outcome == Enqueued::Committed && end.is_none() {
            return Err(String::from("a committed enqueue has an end: when that was acknowledged"));
        }
        if (outcome == Enqueued::With) != with.is_some() {
            return Err(String::from("the outcome `with` and the field `with` go together"));
        }
        let group = group.map(|group| self.group(queue, group));
        let process = process.map(|process| self.process(process));
        let job = self.job(job);
        let known = job.enqueue.as_ref().map(|enqueue| enqueue.outcome);
        match known {
            // A recorder may write it before the call, in case the call does not return.
            Some(_) if outcome == Enqueued::Unknown => return Ok(()),
            None | Some(Enqueued::Unknown) => {}
            Some(_) => return Err(format!("job {} was enqueued before", job.name)),
        }
        job.enqueue = Some(Enqueue {
            group,
            process,
            begin,
            end,
            outcome,
            with,
            place,
            max_attempts,
            run_at,
        });
        Ok(())
    }

    /// Matches ends with starts, and jobs with groups.
    fn finish(&mut self) -> Result<(), ReadError> {
        if self.first > self.last {
            (self.first, self.last) = (0, 0);
        }
        for (at, job) in self.jobs.iter_mut().enumerate() {
            job.finish()?;
            if let Some(group) = job.enqueue.as_ref().and_then(|enqueue| enqueue.group) {
                self.groups[group].jobs.push(at);
            }
        }
        self.faults.sort_by_key(|fault| fault.begin);
        Ok(())
    }
}

impl Job {
    fn new(name: Name) -> Self {
        Self {
            name,
            enqueue: None,
            runs: Vec::new(),
            settles: Vec::new(),
            leaves: Vec::new(),
            returns: Vec::new(),
            effects: Vec::new(),
            status: None,
            newest: None,
            ends: Vec::new(),
        }
    }

    fn finish(&mut self) -> Result<(), ReadError> {
        self.order_runs();
        self.returns.sort_by_key(|back| back.begin);
        self.leaves.sort_by_key(|leave| leave.begin);
        self.settles.sort_by_key(|settle| (settle.attempt, settle.begin));
        self.ends.sort_by_key(|end| end.2);
        let mut open = 0;
        for (attempt, process, at, outcome) in std::mem::take(&mut self.ends) {
            let its = |run: &&mut Run| {
                run.attempt == attempt
                    && run.process == process
                    && run.end.is_none()
                    && run.start <= at
            };
            let Some(run) = self.runs[open..].iter_mut().find(its) else {
                return Err(self.strange(attempt, &format!("ends at {at}")));
            };
            run.end = Some((at, outcome));
            open += self.runs[open..].iter().take_while(|run| run.end.is_some()).count();
        }
        let told = self.settles.iter().map(|settle| settle.attempt);
        let mut told = told.chain(self.effects.iter().map(|effect| effect.attempt));
        match told.find(|&attempt| self.run(attempt).is_none()) {
            Some(attempt) => Err(self.strange(attempt, "is settled or has an effect")),
            None => Ok(()),
        }
    }

    /// Puts the runs in order again, after their times were changed.
    pub fn order_runs(&mut self) {
        self.runs.sort_by_key(|run| (run.start, run.attempt));
        self.newest = (0..self.runs.len()).max_by_key(|&at| self.runs[at].attempt);
    }

    fn strange(&self, attempt: u32, did: &str) -> ReadError {
        ReadError::Whole(format!(
            "attempt {attempt} of job {} {did}, and no line says that it began there before",
            self.name
        ))
    }
}

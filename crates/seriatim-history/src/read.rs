//! Reads a history, line by line.

use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::error::ReadError;
use crate::event::{Delayed, Enqueued, Event, Name, Time};
use crate::history::{
    Batch, Effect, Enqueue, Fault, Group, History, Job, Leave, Limit, Process, Rate, Return, Run,
    Schedule, Settle,
};

/// Bounds times, which are added to each other.
const FARTHEST: Time = 1 << 60;

fn check_time(time: Time) -> Result<(), String> {
    if (-FARTHEST..=FARTHEST).contains(&time) {
        return Ok(());
    }
    Err(format!("the time {time} is beyond 2^60 microseconds"))
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
            check_time(time)?;
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

    fn batch(&mut self, name: Name) -> usize {
        let batches = &mut self.batches;
        *self.batch_names.entry(name).or_insert_with_key(|name| {
            batches.push(Batch::new(name.clone()));
            batches.len() - 1
        })
    }

    fn schedule(&mut self, name: Name) -> &mut Schedule {
        let schedules = &mut self.schedules;
        let at = *self.schedule_names.entry(name).or_insert_with_key(|name| {
            let (every, from, until, jobs) = (None, Time::MIN, None, Vec::new());
            schedules.push(Schedule { name: name.clone(), every, from, until, jobs });
            schedules.len() - 1
        });
        &mut self.schedules[at]
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
            Event::Made { .. } => self.take_made(event)?,
            Event::Limit { queue, of, limit, begin, end } => {
                self.saw(begin, Some(end))?;
                self.limits.push(Limit { queue, of, limit, begin, end });
            }
            Event::Rate { queue, starts, per, burst, begin, end } => {
                self.take_rate(Rate { queue, starts, per, burst, begin, end })?;
            }
            Event::Batch { batch, when, begin, end } => {
                self.saw(begin, end)?;
                let at = self.batch(batch);
                let its = &mut self.batches[at];
                (its.when, its.opened) = (Some(when), its.opened.or(end));
            }
            Event::Seal { batch, begin, end } => {
                self.saw(begin, end)?;
                let at = self.batch(batch);
                let its = &mut self.batches[at];
                its.seal = Some(its.seal.map_or(begin, |seal| seal.min(begin)));
                its.sealed = its.sealed.into_iter().chain(end).min();
            }
            Event::Schedule { schedule, every, from, until } => {
                self.take_schedule(schedule, every, from, until)?;
            }
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
            Event::Status { job, status, forgiven } => {
                let job = self.job(job);
                (job.status, job.forgiven) = (Some(status), forgiven);
            }
            Event::Drained { at } => {
                self.saw(at, None)?;
                self.drained = self.drained.max(Some(at));
            }
        }
        Ok(())
    }

    fn take_schedule(
        &mut self,
        schedule: Name,
        every: Time,
        from: Time,
        until: Option<Time>,
    ) -> Result<(), String> {
        check_time(from)?;
        until.map_or(Ok(()), check_time)?;
        if !(1..=FARTHEST).contains(&every) {
            return Err(format!("a schedule every {every} microseconds is none"));
        }
        let its = self.schedule(schedule);
        if its.every.is_some() {
            return Err(format!("schedule {} was told before", its.name));
        }
        (its.every, its.from, its.until) = (Some(every), from, until);
        Ok(())
    }

    fn take_rate(&mut self, rate: Rate) -> Result<(), String> {
        self.saw(rate.begin, Some(rate.end))?;
        if !(1..=FARTHEST).contains(&rate.per) {
            return Err(format!("a rate in {} microseconds is none", rate.per));
        }
        self.rates.push(rate);
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
            limit_key,
            batch,
        } = event
        else {
            return Ok(());
        };
        self.saw(begin, end)?;
        if outcome == Enqueued::Made {
            return Err(String::from(
                "the event of a job that the queue enqueued itself is `made`",
            ));
        }
        if outcome == Enqueued::Committed && end.is_none() {
            return Err(String::from("a committed enqueue has an end: when that was acknowledged"));
        }
        if (outcome == Enqueued::With) != with.is_some() {
            return Err(String::from("the outcome `with` and the field `with` go together"));
        }
        let group = group.map(|group| self.group(queue, group));
        if limit_key.is_some() && group.is_none() {
            return Err(String::from("a job with a limit key has a group"));
        }
        let process = process.map(|process| self.process(process));
        let batch = batch.map(|batch| self.batch(batch));
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
            limit_key,
            batch,
        });
        Ok(())
    }

    fn take_made(&mut self, event: Event) -> Result<(), String> {
        let Event::Made { job: name, batch, schedule, due, queue, group, begin, end, place } =
            event
        else {
            return Ok(());
        };
        self.saw(begin, Some(end))?;
        due.map_or(Ok(()), check_time)?;
        let group = group.map(|group| self.group(queue, group));
        let job = self.job(name.clone());
        if job.enqueue.is_some() {
            return Err(format!("job {} was enqueued before", job.name));
        }
        job.enqueue = Some(Enqueue {
            group,
            process: None,
            begin,
            end: Some(end),
            outcome: Enqueued::Made,
            with: None,
            place,
            max_attempts: None,
            run_at: None,
            limit_key: None,
            batch: None,
        });
        let at = self.by_name[&name];
        match (batch, schedule, due) {
            (Some(batch), None, None) => {
                let batch = self.batch(batch);
                self.batches[batch].follow_ups.push(at);
            }
            (None, Some(schedule), Some(due)) => self.schedule(schedule).jobs.push((due, at)),
            _ => return Err(format!("job {name} was made by a batch, or by a schedule when due")),
        }
        Ok(())
    }

    /// Matches ends with starts, and jobs with groups.
    fn finish(&mut self) -> Result<(), ReadError> {
        if self.first > self.last {
            (self.first, self.last) = (0, 0);
        }
        for (at, job) in self.jobs.iter_mut().enumerate() {
            job.finish()?;
            let Some(enqueue) = &job.enqueue else { continue };
            if let Some(group) = enqueue.group {
                self.groups[group].jobs.push(at);
            }
            if let Some(batch) = enqueue.batch {
                self.batches[batch].jobs.push(at);
            }
        }
        self.limits.sort_by_key(|limit| limit.begin);
        self.rates.sort_by_key(|rate| rate.begin);
        self.faults.sort_by_key(|fault| fault.begin);
        let mut latest = Time::MIN;
        for fault in &self.faults {
            latest = latest.max(fault.end);
            self.fault_ends.push(latest);
        }
        Ok(())
    }
}

//! Writes down what one process sees, in the format of `docs/history.md`.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use seriatim_history::event::{Ended, Event, Name, Said, Time};

/// The lines of all processes of a run: they are tasks of this one.
pub type Lines = Arc<Mutex<Vec<Event>>>;

#[derive(Debug, Clone)]
pub struct Recorder {
    pub lines: Lines,
    process: Name,
}

pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time::try_from(since.as_micros()).unwrap()
}

impl Recorder {
    pub fn new(lines: &Lines, process: &str) -> Self {
        Self { lines: Arc::clone(lines), process: process.into() }
    }

    pub fn process(&self) -> Name {
        self.process.clone()
    }

    pub fn note(&self, event: Event) {
        self.lines.lock().unwrap().push(event);
    }

    pub fn fault(&self, what: impl Into<String>, begin: Time) {
        self.note(Event::Fault { what: what.into(), begin, end: now() });
    }

    pub fn gone(&self, begin: Time) {
        self.note(Event::Gone { process: self.process(), begin, end: now() });
    }

    /// A handler begins.
    pub fn start(&self, job: &str, attempt: u32) -> Handling {
        let (job, process) = (Name::from(job), self.process());
        self.note(Event::Start { job: job.clone(), attempt, process, at: now() });
        Handling { recorder: self.clone(), job, attempt, ended: false }
    }

    pub fn settled(&self, job: &str, attempt: u32, begin: Time, answer: Said) {
        let end = Some(now());
        self.note(Event::Settle { job: job.into(), attempt, begin, end, answer });
    }
}

/// A handler at work. Dropped, it was dropped itself.
pub struct Handling {
    recorder: Recorder,
    job: Name,
    attempt: u32,
    ended: bool,
}

impl Handling {
    pub fn ends(&mut self, outcome: Ended) {
        self.ended = true;
        let (job, process) = (self.job.clone(), self.recorder.process());
        let attempt = self.attempt;
        self.recorder.note(Event::End { job, attempt, process, at: now(), outcome });
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        if !self.ended {
            self.ends(Ended::Dropped);
        }
    }
}

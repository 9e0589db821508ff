//! Writes down what one process sees.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use seriatim_history::event::{Ended, Event, Name, Time};

/// The file of one process.
#[derive(Debug, Clone)]
pub struct Recorder {
    file: Arc<Mutex<File>>,
    process: Name,
    stopping: Arc<AtomicBool>,
}

/// By the wall clock of the machine, which all its processes share.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time::try_from(since.as_micros()).unwrap()
}

pub fn path(folder: &Path, process: &str) -> PathBuf {
    folder.join(format!("{process}.jsonl"))
}

impl Recorder {
    pub fn new(folder: &Path, process: &str) -> Self {
        let file = File::create(path(folder, process)).unwrap();
        Self { file: Arc::new(Mutex::new(file)), process: process.into(), stopping: Arc::default() }
    }

    pub fn process(&self) -> Name {
        self.process.clone()
    }

    /// With one write, so that a process that is killed leaves whole lines.
    pub fn note(&self, event: &Event) {
        self.note_all([event]);
    }

    /// The same for what is noted at one moment.
    pub fn note_all<'a>(&self, events: impl IntoIterator<Item = &'a Event>) {
        let mut lines = String::new();
        for event in events {
            lines += &serde_json::to_string(event).unwrap();
            lines.push('\n');
        }
        self.file.lock().unwrap().write_all(lines.as_bytes()).unwrap();
    }

    pub fn fault(&self, what: impl Into<String>, begin: Time) {
        self.note(&Event::Fault { what: what.into(), begin, end: now() });
    }

    /// From here on handlers are dropped because the process ends.
    pub fn stops(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// A handler begins.
    pub fn start(&self, job: &str, attempt: u32) -> Run {
        let (job, process) = (Name::from(job), self.process());
        self.note(&Event::Start { job: job.clone(), attempt, process, at: now() });
        Run { recorder: self.clone(), job, attempt, ended: false }
    }
}

/// A handler that is on its way. Dropped, it was dropped itself, or has panicked.
pub struct Run {
    recorder: Recorder,
    job: Name,
    attempt: u32,
    ended: bool,
}

impl Run {
    pub fn ends(&mut self, outcome: Ended) {
        self.ended = true;
        let (job, process) = (self.job.clone(), self.recorder.process());
        let attempt = self.attempt;
        self.recorder.note(&Event::End { job, attempt, process, at: now(), outcome });
    }

    /// The handler is about to write an effect under this key.
    pub fn writes(&self, n: usize) -> String {
        let key = format!("{}/{}/{n}", self.job.0, self.attempt);
        let (job, attempt) = (self.job.clone(), self.attempt);
        self.recorder.note(&Event::Effect { job, attempt, key: key.as_str().into(), at: now() });
        key
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.ends(if self.recorder.is_stopping() {
            Ended::Released
        } else if std::thread::panicking() {
            Ended::Retry
        } else {
            Ended::Dropped
        });
    }
}

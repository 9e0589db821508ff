//! Checks that handlers saw jobs in order, one at a time in their group, and once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The data of every job of the benchmark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The number of its group; 0 without one.
    pub(crate) g: u32,
    /// Its place in its group from 0. Without a group: its place among all.
    pub(crate) s: u32,
    /// When its enqueue began, by the producer's clock in microseconds; 0 if it was loaded.
    pub(crate) t: u64,
}

/// Limit of the violations in words. All are counted.
const TOLD: usize = 5;

/// Checks while it counts: nothing is stored per job but, without groups, a bit.
#[derive(Debug)]
pub(crate) struct Witness {
    seen: Seen,
    started: AtomicU64,
    finished: AtomicU64,
    repeated: AtomicU64,
    strangers: AtomicU64,
    /// Time of the first start, and of the last finish.
    first: AtomicU64,
    last: AtomicU64,
    violations: AtomicU64,
    told: Mutex<Vec<String>>,
}

#[derive(Debug)]
enum Seen {
    Groups(Vec<Group>),
    /// A bit per job.
    Plain(Vec<AtomicU64>),
}

#[derive(Debug, Default)]
struct Group {
    next: AtomicU32,
    running: AtomicBool,
}

impl Witness {
    /// Returns a witness of jobs in groups 0 to `groups`.
    pub(crate) fn of_groups(groups: u32) -> Self {
        Self::new(Seen::Groups((0..groups).map(|_| Group::default()).collect()))
    }

    /// Returns a witness of up to `jobs` jobs without a group.
    pub(crate) fn of_plain(jobs: u32) -> Self {
        Self::new(Seen::Plain((0..=jobs / 64).map(|_| AtomicU64::new(0)).collect()))
    }

    fn new(seen: Seen) -> Self {
        Self {
            seen,
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// A handler begins at `now` (microseconds). Attempts after the first may repeat a job: a hold
    /// was lost, and the promise is at least once.
    pub(crate) fn start(self: &Arc<Self>, job: Job, attempt: u32, now: u64) -> Run {
        let is_repeat = match &self.seen {
            Seen::Groups(groups) => match groups.get(job.g as usize) {
                Some(group) => self.start_in(group, job, attempt),
                // Another processor held it, and has lost it.
                None if attempt > 1 => true,
                None => {
                    self.violation(format!("a job of group {}, which no producer enqueued", job.g))
                }
            },
            Seen::Plain(bits) => match bits.get(job.s as usize / 64) {
                Some(word) if word.fetch_or(bit(job), Ordering::SeqCst) & bit(job) == 0 => false,
                Some(_) if attempt > 1 => true,
                Some(_) => self.violation(format!("job {} ran twice", job.s)),
                None => self.violation(format!("job {}, which no producer enqueued", job.s)),
            },
        };
        self.first.fetch_min(now, Ordering::Relaxed);
        let counter = if is_repeat { &self.repeated } else { &self.started };
        counter.fetch_add(1, Ordering::SeqCst);
        Run { witness: Arc::clone(self), job, is_repeat, ended: false }
    }

    /// Returns whether the job ran before.
    fn start_in(&self, group: &Group, job: Job, attempt: u32) -> bool {
        if group.running.swap(true, Ordering::SeqCst) {
            self.violation(format!("group {}: job {} began while another ran", job.g, job.s));
        }
        let expected = group.next.swap(job.s + 1, Ordering::SeqCst);
        if expected == job.s + 1 && attempt > 1 {
            return true;
        }
        if expected != job.s {
            self.violation(format!("group {}: job {} came, {expected} was next", job.g, job.s));
        }
        false
    }

    fn end(&self, job: Job) {
        if let Seen::Groups(groups) = &self.seen
            && let Some(group) = groups.get(job.g as usize)
            && !group.running.swap(false, Ordering::SeqCst)
        {
            self.violation(format!("group {}: job {} ended beside another", job.g, job.s));
        }
    }

    /// A handler was dropped: its job is to run again.
    fn forget(&self, job: Job) {
        match &self.seen {
            Seen::Groups(groups) => {
                if let Some(group) = groups.get(job.g as usize) {
                    group.next.store(job.s, Ordering::SeqCst);
                }
            }
            Seen::Plain(bits) => {
                if let Some(word) = bits.get(job.s as usize / 64) {
                    word.fetch_and(!bit(job), Ordering::SeqCst);
                }
            }
        }
        self.started.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of ended jobs from groups that another processor held.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::SeqCst)
    }

    fn knows(&self, job: Job) -> bool {
        match &self.seen {
            Seen::Groups(groups) => groups.len() > job.g as usize,
            Seen::Plain(bits) => bits.len() > job.s as usize / 64,
        }
    }

    /// Returns the number of repeated jobs.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::SeqCst)
    }

    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::SeqCst)
    }

    /// Returns the time at which the first handler began; `None` before that.
    pub(crate) fn first(&self) -> Option<u64> {
        Some(self.first.load(Ordering::Relaxed)).filter(|first| *first != u64::MAX)
    }

    /// Returns the time at which the last handler ended.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Returns `Ok`, or the first violations in words.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        match self.violations.load(Ordering::SeqCst) {
            0 => Ok(()),
            count => {
                let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                Err(format!("{count} violations of order: {}", told.join("; ")))
            }
        }
    }

    /// Records a violation. Returns false: the job did not run before.
    fn violation(&self, what: String) -> bool {
        self.violations.fetch_add(1, Ordering::SeqCst);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD {
            told.push(what);
        }
        false
    }
}

/// Returns the bit of an ungrouped job in its word.
fn bit(job: Job) -> u64 {
    1 << (job.s % 64)
}

/// A running handler, until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub(crate) struct Run {
    witness: Arc<Witness>,
    job: Job,
    is_repeat: bool,
    ended: bool,
}

impl Run {
    /// The handler ends at `now`.
    pub(crate) fn finish(mut self, now: u64) {
        self.ended = true;
        self.witness.end(self.job);
        if !self.is_repeat {
            self.witness.last.fetch_max(now, Ordering::Relaxed);
            self.witness.finished.fetch_add(1, Ordering::SeqCst);
        } else if !self.witness.knows(self.job) {
            self.witness.strangers.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if !self.is_repeat {
            self.witness.forget(self.job);
        }
        // After that: from here on the next one may begin.
        self.witness.end(self.job);
    }
}

//! A random program: the steps of producers, handlers and disturbances. The same seed gives the
//! same program.

mod draw;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use draw::generate;

/// Everything that a run is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub lease: Option<u64>,
    pub workers: usize,
    pub slots: usize,
    /// 0: what the library does by itself.
    pub jobs_per_turn: usize,
    /// Groups halt behind a dead job.
    pub halt: bool,
    /// A receiver beside the workers.
    pub receives: Option<Receives>,
    pub limits: Limits,
    /// The sweep runs ten times a second, and what it finds is a fault. Without the sweep,
    /// whatever nothing else wakes never ends.
    pub sweeps: bool,
    /// The batches that jobs may join: whether all jobs must succeed.
    pub batches: Vec<bool>,
    /// The group of a schedule's jobs.
    pub schedule: Option<u8>,
    pub producers: Vec<Vec<Step>>,
    /// One after the other, each so many milliseconds after the one before.
    pub chaos: Vec<(u64, Act)>,
    pub sabotage: Option<Sabotage>,
}

/// Limits of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// How many groups of each limit key run at once.
    pub per_key: Option<u32>,
    /// How many jobs start in a second, and at once.
    pub rate: Option<(u32, u32)>,
    /// The milliseconds between two starts of a group.
    pub spacing: Option<u64>,
}

/// Receives so many jobs at once, and waits so long before it comes back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Receives {
    pub limit: u32,
    pub every: u64,
}

/// The next step of a producer.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Enqueue(Vec<Job>),
    Transaction(Vec<Part>, End),
    Wait(u64),
    /// Cancels its own job that it enqueued this many jobs ago.
    Cancel(usize),
    /// Seals this batch: later jobs are refused.
    Seal(usize),
}

/// The next step of a producer in its transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Enqueue(Vec<Job>),
    /// Behind a savepoint, and perhaps back to it.
    Savepoint(Vec<Job>, bool),
    Wait(u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    Commit,
    Rollback,
    /// Its session is terminated so many microseconds after the commit was sent, or before.
    Torn(u64),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Job {
    pub group: Option<u8>,
    pub delay: u64,
    /// After so many milliseconds.
    pub expires: Option<u64>,
    pub dedup: Option<u8>,
    pub attempts: Option<u32>,
    pub priority: u8,
    pub timeout: Option<u64>,
    pub limit_key: Option<u8>,
    pub batch: Option<usize>,
    /// Its handler's work in each attempt. Later attempts succeed at once.
    pub plan: Vec<Turn>,
}

/// A handler's work in one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// How long it takes.
    pub ms: u64,
    /// Effects that it writes before that, and after.
    pub writes: (usize, usize),
    /// Whether it enqueues a job of this group in its transaction.
    pub follower: Option<u8>,
    pub rest: Option<Rest>,
    /// Whether it reports its progress and a checkpoint.
    pub reports: bool,
    pub then: Then,
}

/// Lets its group or its queue rest for so long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Rest {
    Group(u64),
    Queue(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Then {
    Succeed,
    Retry,
    RetryAt(u64),
    /// Puts its job off, without what it wrote and with it.
    Snooze(u64),
    Again(u64),
    Fail,
    Panic,
    /// Goes on until it is told to stop, and fails then.
    UntilTold,
    Hang,
}

/// A disturbance of the run. A number selects a worker or a job, of however many there are then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    Kill(usize),
    Stop(usize),
    /// For so long.
    Freeze(usize, u64),
    /// Terminates this session of a worker.
    Terminate(usize),
    PauseQueue(u64),
    PauseGroup(u8, u64),
    Resume,
    Redrive(u32),
    Retry(usize),
    Cancel(usize),
    LimitPerKey(Option<u32>),
}

/// A deliberate break of the promises, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sabotage {
    /// An operator's SQL frees the groups of running handlers.
    FreeClaims,
    /// Handlers write their effects beside their transaction.
    WriteOutside,
    /// An operator's SQL deletes queued jobs.
    Delete,
    /// A queued job gets a new and higher id.
    Renumber,
    /// An operator's SQL takes the slots of limit keys from groups that run.
    ForgetSlots,
    /// An operator's SQL deletes what wakes groups that wait for a slot.
    ForgetFreedSlots,
}

impl Program {
    /// The size of the program. Each step of shrinking reduces it.
    pub fn size(&self) -> usize {
        let plan = |job: &Job| {
            let settings = [
                job.delay > 0,
                job.expires.is_some(),
                job.dedup.is_some(),
                job.attempts.is_some(),
                job.priority > 0,
                job.timeout.is_some(),
                job.limit_key.is_some(),
                job.batch.is_some(),
            ];
            let plan: usize = job.plan.iter().map(Turn::size).sum();
            1 + plan + settings.iter().filter(|set| **set).count()
        };
        let jobs: usize = self.jobs().map(plan).sum();
        let steps: usize = self.producers.iter().flatten().map(Step::size).sum();
        let choices = usize::from(self.halt)
            + 3 * usize::from(self.receives.is_some())
            + usize::from(self.limits.per_key.is_some())
            + usize::from(self.limits.rate.is_some())
            + usize::from(self.limits.spacing.is_some())
            + usize::from(self.schedule.is_some())
            + self.batches.len()
            + self.jobs_per_turn
            + self.slots
            + self.workers;
        jobs + steps + choices + self.producers.len() + 3 * self.chaos.len()
    }

    /// Whether several jobs of a group may be claimed at once.
    pub fn followers(&self) -> bool {
        self.jobs_per_turn != 1 || self.receives.is_some_and(|its| its.limit > 1)
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.producers.iter().flatten().flat_map(Step::jobs)
    }

    pub fn jobs_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.producers.iter_mut().flatten().flat_map(|step| match step {
            Step::Enqueue(jobs) => jobs.iter_mut().collect(),
            Step::Transaction(parts, _) => parts.iter_mut().flat_map(Part::jobs_mut).collect(),
            Step::Wait(_) | Step::Cancel(_) | Step::Seal(_) => Vec::new(),
        })
    }
}

impl Turn {
    fn size(&self) -> usize {
        1 + usize::from(self.rest.is_some())
            + usize::from(self.reports)
            + usize::from(matches!(self.then, Then::Snooze(_) | Then::Again(_)))
    }

    /// Returns the turn of a handler that does nothing.
    pub fn plain() -> Self {
        Self {
            ms: 0,
            writes: (0, 0),
            follower: None,
            rest: None,
            reports: false,
            then: Then::Succeed,
        }
    }
}

impl Step {
    fn size(&self) -> usize {
        match self {
            Self::Transaction(parts, end) => 2 + parts.len() + usize::from(*end != End::Commit),
            _ => 1,
        }
    }

    fn jobs(&self) -> Vec<&Job> {
        match self {
            Self::Enqueue(jobs) => jobs.iter().collect(),
            Self::Transaction(parts, _) => parts.iter().flat_map(Part::jobs).collect(),
            Self::Wait(_) | Self::Cancel(_) | Self::Seal(_) => Vec::new(),
        }
    }
}

impl Part {
    fn jobs(&self) -> &[Job] {
        match self {
            Self::Enqueue(jobs) | Self::Savepoint(jobs, _) => jobs,
            Self::Wait(_) => &[],
        }
    }

    fn jobs_mut(&mut self) -> &mut [Job] {
        match self {
            Self::Enqueue(jobs) | Self::Savepoint(jobs, _) => jobs,
            Self::Wait(_) => &mut [],
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lease,
            workers,
            slots,
            jobs_per_turn,
            halt,
            receives,
            limits,
            sweeps,
            batches,
            schedule,
            producers,
            chaos,
            sabotage,
        } = self;
        writeln!(
            f,
            "lease {lease:?} ms, {workers} workers, {slots} slots, {jobs_per_turn} jobs per turn, halt: {halt}, {receives:?}, {sabotage:?}"
        )?;
        writeln!(
            f,
            "{limits:?}, sweeps: {sweeps}, batches {batches:?}, schedule of group {schedule:?}"
        )?;
        for (at, steps) in producers.iter().enumerate() {
            writeln!(f, "producer {at}:")?;
            for step in steps {
                writeln!(f, "  {step:?}")?;
            }
        }
        writeln!(f, "meanwhile:")?;
        for (after, act) in chaos {
            writeln!(f, "  after {after} ms {act:?}")?;
        }
        Ok(())
    }
}

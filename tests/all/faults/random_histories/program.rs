//! A random program: the steps of producers, handlers and disturbances. The same seed gives the
//! same program.

use std::fmt;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

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
    pub producers: Vec<Vec<Step>>,
    /// One after the other, each so many milliseconds after the one before.
    pub chaos: Vec<(u64, Act)>,
    pub sabotage: Option<Sabotage>,
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
    pub then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Then {
    Succeed,
    Retry,
    RetryAt(u64),
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
}

const GROUPS: u8 = 4;

/// `size`: 1, or longer programs.
pub fn generate(seed: u64, leases: bool, size: usize) -> Program {
    let mut rng = Rng::with_seed(seed);
    let lease = leases.then(|| *pick(&mut rng, &[2_000, 600_000]));
    let producers = (0..rng.usize(1..=3)).map(|_| producer(&mut rng, size)).collect();
    let chaos =
        (0..rng.usize(0..=8 * size)).map(|_| (rng.u64(0..300), act(&mut rng, lease))).collect();
    Program {
        lease,
        workers: rng.usize(1..=4),
        slots: rng.usize(1..=3),
        jobs_per_turn: *pick(&mut rng, &[0, 1, 1, 4]),
        halt: rng.u8(..3) == 0,
        receives: now_and_then(&mut rng, 3, |rng| Receives {
            limit: rng.u32(1..=4),
            every: rng.u64(..50),
        }),
        producers,
        chaos,
        sabotage: None,
    }
}

fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(..of.len())]
}

fn producer(rng: &mut Rng, size: usize) -> Vec<Step> {
    (0..rng.usize(3..=12) * size)
        .map(|_| match rng.u8(..10) {
            0..4 => Step::Enqueue(jobs(rng)),
            4..8 => {
                let parts = (0..rng.usize(1..=3)).map(|_| part(rng)).collect();
                let end = match rng.u8(..8) {
                    0 => End::Rollback,
                    1 => End::Torn(rng.u64(..1_500)),
                    _ => End::Commit,
                };
                Step::Transaction(parts, end)
            }
            8 => Step::Wait(rng.u64(..100)),
            _ => Step::Cancel(rng.usize(..4)),
        })
        .collect()
}

fn part(rng: &mut Rng) -> Part {
    match rng.u8(..6) {
        0 => Part::Wait(rng.u64(..150)),
        1 => Part::Savepoint(jobs(rng), rng.bool()),
        _ => Part::Enqueue(jobs(rng)),
    }
}

fn jobs(rng: &mut Rng) -> Vec<Job> {
    (0..rng.usize(1..=4)).map(|_| job(rng)).collect()
}

/// A value now and then.
fn now_and_then<T>(rng: &mut Rng, one_in: u8, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.u8(..one_in) == 0).then(|| value(rng))
}

fn job(rng: &mut Rng) -> Job {
    let turns = rng.usize(0..=3);
    Job {
        group: (rng.u8(..10) > 0).then(|| rng.u8(..GROUPS)),
        delay: now_and_then(rng, 8, |rng| rng.u64(..150)).unwrap_or(0),
        expires: now_and_then(rng, 12, |rng| rng.u64(20..500)),
        dedup: now_and_then(rng, 10, |rng| rng.u8(..6)),
        attempts: now_and_then(rng, 5, |rng| rng.u32(1..=3)),
        priority: now_and_then(rng, 10, |rng| rng.u8(..10)).unwrap_or(0),
        timeout: now_and_then(rng, 8, |rng| rng.u64(20..100)),
        plan: (0..turns).map(|_| turn(rng)).collect(),
    }
}

fn turn(rng: &mut Rng) -> Turn {
    Turn {
        ms: match rng.u8(..10) {
            0 => rng.u64(50..300),
            1..4 => rng.u64(5..30),
            _ => rng.u64(..4),
        },
        writes: (rng.usize(..2), rng.usize(..3)),
        follower: now_and_then(rng, 6, |rng| rng.u8(..GROUPS)),
        then: match rng.u8(..20) {
            0..3 => Then::Retry,
            3 => Then::RetryAt(rng.u64(..100)),
            4 => Then::Fail,
            5 => Then::Panic,
            6 => Then::UntilTold,
            7 => Then::Hang,
            _ => Then::Succeed,
        },
    }
}

fn act(rng: &mut Rng, lease: Option<u64>) -> Act {
    // A frozen worker's short lease would run out, with a handler in the middle.
    let may_freeze = lease.is_none_or(|lease| lease > 60_000);
    match rng.u8(..16) {
        0..4 => Act::Kill(rng.usize(..4)),
        4 | 5 => Act::Stop(rng.usize(..4)),
        6 if may_freeze => Act::Freeze(rng.usize(..4), rng.u64(50..2_500)),
        7 | 8 => Act::Terminate(rng.usize(..20)),
        9 => Act::PauseQueue(rng.u64(..200)),
        10 => Act::PauseGroup(rng.u8(..GROUPS), rng.u64(..200)),
        11 => Act::Resume,
        12 => Act::Redrive(rng.u32(1..=5)),
        13 => Act::Retry(rng.usize(..20)),
        _ => Act::Cancel(rng.usize(..20)),
    }
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
            ];
            1 + job.plan.len() + settings.iter().filter(|set| **set).count()
        };
        let jobs: usize = self.jobs().map(plan).sum();
        let steps: usize = self.producers.iter().flatten().map(Step::size).sum();
        let choices = usize::from(self.halt)
            + 3 * usize::from(self.receives.is_some())
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
            Step::Wait(_) | Step::Cancel(_) => Vec::new(),
        })
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
            Self::Wait(_) | Self::Cancel(_) => Vec::new(),
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
            producers,
            chaos,
            sabotage,
        } = self;
        writeln!(
            f,
            "lease {lease:?} ms, {workers} workers, {slots} slots, {jobs_per_turn} jobs per turn, halt: {halt}, {receives:?}, {sabotage:?}"
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

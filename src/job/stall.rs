//! When a processor counts as stalled. Pure.
//!
//! Time is what the watchdog itself has seen pass, sample by sample. A process that was frozen, or
//! a machine that slept, was not watched meanwhile, and that time does not count.

use std::time::Duration;

/// Bounds every step of a loop but the wait: the claim and the wait for a connection have this
/// limit.
const STEP_LIMIT: Duration = Duration::from_secs(5);

/// The activity of a queue's loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Activity {
    /// It waited for a slot, for a wake-up or for its poll.
    #[default]
    Waiting,
    /// It got connections from the pool.
    Connecting,
    /// It claimed jobs.
    Claiming,
}

impl Activity {
    const ALL: [Self; 3] = [Self::Waiting, Self::Connecting, Self::Claiming];

    pub(crate) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|doing| *doing as u8 == number).unwrap_or_default()
    }
}

impl std::fmt::Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Connecting => "getting a connection",
            Self::Claiming => "claiming",
        })
    }
}

/// Why a [`Watchdog`](crate::observe::Watchdog) ends the process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stall {
    /// The application's runtime polls nothing any more. All of its threads are blocked; or the one
    /// that waits for timers and sockets is, while the others sleep. So one handler that blocks can
    /// be enough.
    #[error(
        "the runtime has polled no task for {lasted:.1?} (running handlers: {running}): something blocks its threads"
    )]
    Runtime {
        /// How long it has lasted.
        lasted: Duration,
        /// The number of running handlers.
        running: u64,
    },
    /// The loop of a queue is not polled any more, but the runtime works.
    #[error(
        "the loop of queue {queue:?} was not polled for {lasted:.1?}, it was last {doing}: something blocks its thread"
    )]
    Loop {
        /// The queue.
        queue: String,
        /// The activity of the loop.
        doing: Activity,
        /// How long it has lasted.
        lasted: Duration,
    },
    /// The loop of a queue is polled, but does not come out of a step that has a limit.
    #[error("the loop of queue {queue:?} has been {doing} for {lasted:.1?}")]
    Step {
        /// The queue.
        queue: String,
        /// The step.
        doing: Activity,
        /// How long it has lasted.
        lasted: Duration,
    },
    /// The loop of a queue panicked, so no worker claims its jobs.
    #[error("the loop of queue {queue:?} panicked, it was last {doing}")]
    Panicked {
        /// The queue.
        queue: String,
        /// The activity of the loop.
        doing: Activity,
    },
    /// A shutdown did not end.
    #[error(
        "the shutdown has not ended {margin:?} after its deadline of {deadline:?} (running handlers: {running})"
    )]
    Shutdown {
        /// The deadline of the shutdown.
        deadline: Duration,
        /// The margin that the watchdog adds to it.
        margin: Duration,
        /// The number of handlers that still run.
        running: u64,
    },
}

/// Whether a loop lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LoopState {
    #[default]
    Alive,
    /// It returned, or its runtime ended.
    Over,
    Panicked,
}

/// A loop at the time of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoopSample {
    /// The number of times that it was polled.
    pub(crate) polls: u64,
    /// The number of steps that it has begun.
    pub(crate) steps: u64,
    pub(crate) doing: Activity,
    pub(crate) life: LoopState,
}

/// One sample of a processor.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// A task that does nothing but wait to be polled.
    pub(crate) runtime: LoopSample,
    pub(crate) loops: Vec<LoopSample>,
    /// The number of running handlers.
    pub(crate) running: u64,
    /// The deadline of a shutdown that has begun.
    pub(crate) deadline: Option<Duration>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum StallVerdict {
    Fine,
    /// The processor has ended.
    Ended,
    Stalled(Stall),
}

/// The history of one loop.
#[derive(Debug, Default)]
struct Track {
    seen: LoopSample,
    unpolled: Duration,
    in_step: Duration,
}

impl Track {
    fn follow(&mut self, seen: LoopSample, elapsed: Duration) {
        let still = |so_far: Duration, same| if same { so_far + elapsed } else { Duration::ZERO };
        self.unpolled = still(self.unpolled, seen.polls == self.seen.polls);
        self.in_step = still(self.in_step, seen.steps == self.seen.steps);
        self.seen = seen;
    }
}

/// Finds out from samples whether a processor is stalled.
#[derive(Debug)]
pub(crate) struct StallDetector {
    limit: Duration,
    margin: Duration,
    runtime: Track,
    loops: Vec<(String, Track)>,
    /// Time since the begin of the shutdown.
    ending: Duration,
}

impl StallDetector {
    pub(crate) fn new(
        limit: Duration,
        margin: Duration,
        queues: impl IntoIterator<Item = String>,
    ) -> Self {
        let loops = queues.into_iter().map(|queue| (queue, Track::default())).collect();
        Self { limit, margin, runtime: Track::default(), loops, ending: Duration::ZERO }
    }

    /// Returns the interval of samples.
    pub(crate) fn tick(&self) -> Duration {
        (self.limit / 8).min(Duration::from_secs(1))
    }

    /// Checks a sample, `elapsed` after the last one.
    pub(crate) fn check(&mut self, sample: &Sample, elapsed: Duration) -> StallVerdict {
        // If this sample is much too late, the process was frozen, with all its loops.
        let elapsed = elapsed.min(self.tick() * 2);
        self.runtime.follow(sample.runtime, elapsed);
        for ((_, track), seen) in self.loops.iter_mut().zip(&sample.loops) {
            track.follow(*seen, elapsed);
        }
        let over = self.loops.iter().all(|(_, track)| track.seen.life == LoopState::Over);
        if over && sample.running == 0 {
            return StallVerdict::Ended;
        }
        match self.stall(sample, elapsed) {
            Some(stall) => StallVerdict::Stalled(stall),
            None => StallVerdict::Fine,
        }
    }

    fn stall(&mut self, sample: &Sample, elapsed: Duration) -> Option<Stall> {
        let running = sample.running;
        let alive = self.runtime.seen.life == LoopState::Alive;
        if alive && self.runtime.unpolled >= self.limit {
            return Some(Stall::Runtime { lasted: self.runtime.unpolled, running });
        }
        let stalled = self.loops.iter().find_map(|(queue, track)| self.loop_stall(queue, track));
        if let Some(stall) = stalled {
            // Tasks are not polled in step: this loop may only be the first to show that none is.
            return Some(match stall {
                Stall::Loop { lasted, .. } if alive && self.runtime.unpolled >= self.limit / 2 => {
                    Stall::Runtime { lasted, running }
                }
                stall => stall,
            });
        }
        if let Some(deadline) = sample.deadline {
            self.ending += elapsed;
            if self.ending >= deadline.saturating_add(self.margin) {
                return Some(Stall::Shutdown { deadline, margin: self.margin, running });
            }
        }
        None
    }

    fn loop_stall(&self, queue: &str, track: &Track) -> Option<Stall> {
        let (queue, doing) = (queue.to_owned(), track.seen.doing);
        match track.seen.life {
            LoopState::Alive if track.unpolled >= self.limit => {
                Some(Stall::Loop { queue, doing, lasted: track.unpolled })
            }
            LoopState::Alive
                if doing != Activity::Waiting && track.in_step >= self.limit + STEP_LIMIT =>
            {
                Some(Stall::Step { queue, doing, lasted: track.in_step })
            }
            LoopState::Panicked if self.runtime.seen.life == LoopState::Alive => {
                Some(Stall::Panicked { queue, doing })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(4);
    const MARGIN: Duration = Duration::from_secs(2);
    const TICK: Duration = Duration::from_millis(500);

    /// Takes samples until the verdict is not `Fine`, at most for `limit` seconds. Returns the time
    /// and the verdict.
    fn watch(
        limit: u64,
        mut sample: impl FnMut(u64) -> Sample,
    ) -> Option<(Duration, StallVerdict)> {
        let mut check = StallDetector::new(LIMIT, MARGIN, ["q".to_owned(), "r".to_owned()]);
        (1..=limit * 2).find_map(|n| match check.check(&sample(n), TICK) {
            StallVerdict::Fine => None,
            verdict => Some((TICK * u32::try_from(n).unwrap(), verdict)),
        })
    }

    fn polled(n: u64) -> LoopSample {
        LoopSample { polls: n, steps: n, ..LoopSample::default() }
    }

    fn healthy(n: u64) -> Sample {
        Sample { runtime: polled(n), loops: vec![polled(n); 2], ..Sample::default() }
    }

    #[test]
    fn a_loop_that_waits_for_ever_and_is_polled_is_fine() {
        let idle = |n| {
            let seen = LoopSample { steps: 1, ..polled(n) };
            Sample { loops: vec![seen; 2], running: 3, ..healthy(n) }
        };
        assert_eq!(watch(1_000, idle), None);
        // A loop that is polled only now and then is fine.
        assert_eq!(watch(1_000, |n| healthy(n / 7)), None);
    }

    #[test]
    fn no_poll_of_anything_is_the_runtimes_stall() {
        let (after, verdict) = watch(60, |n| Sample { running: 2, ..healthy(n.min(10)) }).unwrap();
        assert_eq!(after, TICK * 10 + LIMIT);
        assert_eq!(verdict, StallVerdict::Stalled(Stall::Runtime { lasted: LIMIT, running: 2 }));
        // The last polls of the loops are apart.
        let staggered = |n: u64| Sample { runtime: polled(n.min(12)), ..healthy(n.min(10)) };
        let (_, verdict) = watch(60, staggered).unwrap();
        assert!(matches!(verdict, StallVerdict::Stalled(Stall::Runtime { .. })), "{verdict:?}");
    }

    #[test]
    fn a_loop_alone_that_is_not_polled_is_named() {
        let stuck = |n: u64| {
            let claiming = LoopSample { doing: Activity::Claiming, ..polled(n.min(10)) };
            Sample { loops: vec![polled(n), claiming], ..healthy(n) }
        };
        let (after, verdict) = watch(60, stuck).unwrap();
        assert_eq!(after, TICK * 10 + LIMIT);
        let stall = Stall::Loop { queue: "r".into(), doing: Activity::Claiming, lasted: LIMIT };
        assert_eq!(verdict, StallVerdict::Stalled(stall));
    }

    #[test]
    fn a_step_has_its_own_limit_and_the_watchdogs() {
        let stuck = |n: u64| {
            let step = LoopSample { doing: Activity::Connecting, steps: n.min(10), ..polled(n) };
            Sample { loops: vec![step, polled(n)], ..healthy(n) }
        };
        let (after, verdict) = watch(60, stuck).unwrap();
        assert_eq!(after, TICK * 10 + LIMIT + STEP_LIMIT);
        assert!(matches!(verdict, StallVerdict::Stalled(Stall::Step { .. })), "{verdict:?}");
    }

    #[test]
    fn time_without_samples_does_not_count() {
        let mut check = StallDetector::new(LIMIT, MARGIN, ["q".to_owned()]);
        let sample = Sample { loops: vec![polled(1)], ..healthy(1) };
        // One sample that sees the first polls, and others that count two ticks each.
        let verdicts: Vec<StallVerdict> =
            (0..5).map(|_| check.check(&sample, Duration::from_hours(1))).collect();
        let fine = verdicts.iter().filter(|verdict| **verdict == StallVerdict::Fine).count();
        assert_eq!(fine, 4, "{verdicts:?}");
    }

    #[test]
    fn a_panic_counts_unless_all_has_ended() {
        let ended = |life| {
            move |n| {
                let loops = vec![LoopSample { life, ..polled(n) }, polled(n)];
                Sample { loops, ..healthy(n) }
            }
        };
        let (after, verdict) = watch(60, ended(LoopState::Panicked)).unwrap();
        assert_eq!(after, TICK);
        assert!(matches!(verdict, StallVerdict::Stalled(Stall::Panicked { .. })), "{verdict:?}");
        assert_eq!(watch(60, ended(LoopState::Over)), None);
    }

    #[test]
    fn a_shutdown_has_its_deadline_and_the_margin() {
        let deadline = Some(Duration::from_secs(3));
        let (after, verdict) = watch(60, |n| Sample { deadline, ..healthy(n) }).unwrap();
        assert_eq!(after, Duration::from_secs(5));
        assert!(matches!(verdict, StallVerdict::Stalled(Stall::Shutdown { .. })), "{verdict:?}");
        let over = LoopSample { life: LoopState::Over, ..LoopSample::default() };
        let sample = |running| Sample { runtime: over, loops: vec![over; 2], running, deadline };
        // The runtime has gone, but for a handler that blocks one of its threads.
        let (after, verdict) = watch(60, |_| sample(1)).unwrap();
        assert_eq!(after, Duration::from_secs(5));
        assert!(matches!(verdict, StallVerdict::Stalled(Stall::Shutdown { running: 1, .. })));
        assert_eq!(watch(60, |_| sample(0)).unwrap().1, StallVerdict::Ended);
    }
}
